package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ClientConfig;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.InvalidStreamException;
import io.pravega.client.stream.NoSuchScopeException;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.common.Exceptions;
import java.net.URI;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Scopes and streams from creation to deletion, through StreamManager. */
class StreamsTest {
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(StreamsTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    @Test
    void aScopeIsCreatedOnceListedAndDeletedOnce() {
        String name = "scope-" + UUID.randomUUID();
        assertFalse(scope.streams.checkScopeExists(name));
        assertTrue(scope.streams.createScope(name));
        assertFalse(scope.streams.createScope(name));
        assertTrue(scope.streams.checkScopeExists(name));
        assertTrue(Scope.list(scope.streams.listScopes()).contains(name));
        assertTrue(scope.streams.deleteScope(name));
        assertFalse(scope.streams.deleteScope(name));
        assertFalse(scope.streams.checkScopeExists(name));
        assertFalse(Scope.list(scope.streams.listScopes()).contains(name));
    }

    @Test
    void aScopeWithStreamsIsNotDeletedByMistake() {
        scope.create("guard", 1);
        assertThrows(IllegalStateException.class, () -> scope.streams.deleteScope(scope.name));
        assertTrue(scope.streams.checkStreamExists(scope.name, "guard"));
    }

    @Test
    void aScopeIsDeletedWithAllThatIsInIt() throws Exception {
        try (Scope doomed = new Scope(StreamsTest.class)) {
            doomed.create("one", 2);
            doomed.write("one", Event.numbered(3, 0, 30));
            doomed.create("two", 1);
            assertTrue(doomed.streams.sealStream(doomed.name, "two"));
            doomed.groups.createReaderGroup(
                    "group", ReaderGroupConfig.builder().stream(Stream.of(doomed.name, "one")).build());
            assertTrue(doomed.controller
                    .createKeyValueTable(
                            doomed.name,
                            "table",
                            KeyValueTableConfiguration.builder().partitionCount(1).primaryKeyLength(4).build())
                    .get());
            assertTrue(doomed.streams.deleteScopeRecursive(doomed.name));
            assertFalse(doomed.streams.checkScopeExists(doomed.name));
            assertFalse(doomed.streams.checkStreamExists(doomed.name, "one"));
            assertTrue(doomed.streams.createScope(doomed.name), "the name is free again");
            assertEquals(List.of(), Scope.list(doomed.streams.listStreams(doomed.name)));
        }
    }

    @Test
    @SuppressWarnings("deprecation") // older applications delete so, one thing after the other
    void aClientMayDeleteWhatIsInAScopeItself() throws Exception {
        try (Scope doomed = new Scope(StreamsTest.class)) {
            Stream stream = doomed.create("one", 2);
            doomed.write("one", Event.numbered(3, 0, 30));
            doomed.groups.createReaderGroup("group", ReaderGroupConfig.builder().stream(stream).build());
            assertTrue(doomed.streams.deleteScope(doomed.name, true));
            assertFalse(doomed.streams.checkScopeExists(doomed.name));
        }
    }

    @Test
    void aClientFindsTheControllerByDiscovery() {
        ClientConfig plain = scope.client();
        String uri = plain.getControllerURI().toString().replaceFirst("^tcp:", "pravega:").replaceFirst("^tls:", "pravegas:");
        try (StreamManager streams = StreamManager.create(plain.toBuilder().controllerURI(URI.create(uri)).build())) {
            assertTrue(streams.checkScopeExists(scope.name));
        }
    }

    @Test
    void aStreamIsCreatedOnceInAScopeThatExists() {
        scope.create("once", 3);
        assertFalse(scope.streams.createStream(scope.name, "once", Scope.fixed(5)));
        assertEquals(Scope.fixed(3), scope.info("once").getStreamConfiguration());
        assertThrows(
                IllegalArgumentException.class,
                () -> scope.streams.createStream("no-such-scope", "once", Scope.fixed(1)));
        assertFalse(scope.streams.checkStreamExists(scope.name, "never"));
    }

    @Test
    void aConfigurationIsKeptAndReplacedAsAWhole() {
        StreamConfiguration rich = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(100, 2, 3))
                .retentionPolicy(RetentionPolicy.byTime(Duration.ofHours(1), Duration.ofHours(2)))
                .timestampAggregationTimeout(7_000)
                .rolloverSizeBytes(4_000_000)
                .tags(List.of("meters", "berlin"))
                .build();
        // StreamManager drops the timeout and the rollover size on the way; what is below it does not.
        assertTrue(scope.controller.createStream(scope.name, "configured", rich).join());
        assertEquals(rich, scope.info("configured").getStreamConfiguration());
        assertEquals(Set.of("meters", "berlin"), new HashSet<>(scope.streams.getStreamTags(scope.name, "configured")));
        StreamConfiguration plain = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byDataRate(20, 4, 1))
                .retentionPolicy(RetentionPolicy.bySizeBytes(1_000_000, 5_000_000))
                .build();
        assertTrue(scope.streams.updateStream(scope.name, "configured", plain));
        assertEquals(plain, scope.info("configured").getStreamConfiguration());
        assertEquals(Set.of(), new HashSet<>(scope.streams.getStreamTags(scope.name, "configured")));
        assertThrows(
                IllegalArgumentException.class, () -> scope.streams.updateStream(scope.name, "never", plain));
    }

    @Test
    void everyFormOfRetentionIsTakenAndEnded() {
        scope.create("retained", 1);
        List<RetentionPolicy> policies = List.of(
                RetentionPolicy.byTime(Duration.ofMinutes(5)),
                RetentionPolicy.byTime(Duration.ofMinutes(5), Duration.ofDays(1)),
                RetentionPolicy.bySizeBytes(1_000_000),
                RetentionPolicy.bySizeBytes(1_000_000, 2_000_000));
        for (RetentionPolicy policy : policies) {
            StreamConfiguration kept = StreamConfiguration.builder()
                    .scalingPolicy(ScalingPolicy.fixed(1))
                    .retentionPolicy(policy)
                    .build();
            assertTrue(scope.streams.updateStream(scope.name, "retained", kept));
            assertEquals(policy, scope.info("retained").getStreamConfiguration().getRetentionPolicy());
        }
        assertTrue(scope.streams.updateStream(scope.name, "retained", Scope.fixed(1)));
        assertEquals(null, scope.info("retained").getStreamConfiguration().getRetentionPolicy());
    }

    @Test
    void listsGoOverManyPagesAndNameEachStreamOnce() throws Exception {
        try (Scope crowd = new Scope(StreamsTest.class)) {
            Set<String> names = IntStream.range(0, 25).mapToObj(i -> "stream" + i).collect(Collectors.toSet());
            names.forEach(name -> crowd.streams.createStream(
                    crowd.name,
                    name,
                    StreamConfiguration.builder()
                            .scalingPolicy(ScalingPolicy.fixed(1))
                            .tag(name.endsWith("7") ? "seven" : "other")
                            .build()));
            List<Stream> all = Scope.list(crowd.streams.listStreams(crowd.name));
            List<String> own = all.stream().map(Stream::getStreamName).filter(name -> !name.startsWith("_")).toList();
            assertEquals(names.size(), own.size());
            assertEquals(names, new HashSet<>(own));
            List<Stream> tagged = Scope.list(crowd.streams.listStreams(crowd.name, "seven"));
            assertEquals(
                    new TreeSet<>(Set.of("stream7", "stream17")),
                    tagged.stream().map(Stream::getStreamName).collect(Collectors.toCollection(TreeSet::new)));
            assertEquals(List.of(), Scope.list(crowd.streams.listStreams(crowd.name, "nobody")));
        }
        RuntimeException missing = assertThrows(
                CompletionException.class, () -> Scope.list(scope.streams.listStreams("no-such-scope")));
        assertInstanceOf(NoSuchScopeException.class, Exceptions.unwrap(missing));
    }

    @Test
    void streamInfoSaysWhereTheStreamBeginsAndEnds() throws Exception {
        Stream stream = scope.create("extent", 2);
        StreamInfo empty = scope.info("extent");
        assertEquals(empty.getHeadStreamCut(), empty.getTailStreamCut());
        assertEquals(List.of(0L, 0L), List.copyOf(empty.getTailStreamCut().asImpl().getPositions().values()));
        scope.write("extent", Event.numbered(4, 0, 40));
        StreamInfo full = scope.info("extent");
        assertEquals(empty.getHeadStreamCut(), full.getHeadStreamCut());
        long bytes = Event.numbered(4, 0, 40).stream().mapToLong(event -> 8 + event.toString().length()).sum();
        assertEquals(bytes, sum(full.getTailStreamCut()));
        assertFalse(full.isSealed());
        scope.scale(stream, 3);
        StreamInfo scaled = scope.info("extent");
        assertEquals(empty.getHeadStreamCut(), scaled.getHeadStreamCut());
        assertEquals(List.of(0L, 0L, 0L), List.copyOf(scaled.getTailStreamCut().asImpl().getPositions().values()));
    }

    @Test
    void aStreamIsNotScaledBelowItsMinimum() throws Exception {
        Stream stream = scope.create("minimum", 2);
        scope.scale(stream, 3);
        scope.scale(stream, 2);
        var segments = scope.controller.getCurrentSegments(scope.name, "minimum").get().getSegments();
        List<Long> ids = segments.stream().map(segment -> segment.getSegmentId()).toList();
        var refused = scope.controller.scaleStream(stream, ids, Map.of(0.0, 1.0), scope.executor).getFuture();
        assertFalse(refused.get());
        assertEquals(segments, scope.controller.getCurrentSegments(scope.name, "minimum").get().getSegments());
    }

    private static long sum(StreamCut cut) {
        return cut.asImpl().getPositions().values().stream().mapToLong(Long::longValue).sum();
    }

    @Test
    void aTruncatedStreamBeginsAtTheCut() throws Exception {
        Stream stream = scope.create("truncated", 1);
        scope.write("truncated", Event.numbered(5, 0, 50));
        StreamCut first = scope.tail("truncated");
        scope.write("truncated", Event.numbered(5, 10, 50));
        assertTrue(scope.streams.truncateStream(scope.name, "truncated", first));
        assertEquals(first, scope.head("truncated"));
        Event.assertSame(Event.numbered(5, 10, 50), scope.read("truncated"));
        scope.scale(stream, 2);
        scope.write("truncated", Event.numbered(5, 20, 50));
        StreamCut second = scope.tail("truncated");
        scope.write("truncated", Event.numbered(5, 30, 50));
        assertTrue(scope.streams.truncateStream(scope.name, "truncated", second));
        assertEquals(second, scope.head("truncated"));
        Event.assertSame(Event.numbered(5, 30, 50), scope.read("truncated"));
        assertTrue(scope.streams.truncateStream(scope.name, "truncated", second), "a repeated truncation changes nothing");
    }

    @Test
    void aStreamIsNotTruncatedBehindItsHead() {
        scope.create("ahead", 1);
        StreamCut start = scope.tail("ahead");
        scope.write("ahead", Event.numbered(1, 0, 10));
        StreamCut later = scope.tail("ahead");
        assertTrue(scope.streams.truncateStream(scope.name, "ahead", later));
        assertThrows(RuntimeException.class, () -> scope.streams.truncateStream(scope.name, "ahead", start));
        assertEquals(later, scope.head("ahead"));
    }

    @Test
    void aSealedStreamTakesNothingAndKeepsWhatItHas() {
        scope.create("sealed", 2);
        scope.write("sealed", Event.numbered(3, 0, 30));
        StreamCut tail = scope.tail("sealed");
        try (EventStreamWriter<String> writer = scope.writer("sealed")) {
            assertTrue(scope.streams.sealStream(scope.name, "sealed"));
            CompletableFuture<Void> refused = writer.writeEvent("key0", "key0#10");
            assertThrows(CompletionException.class, refused::join);
        }
        assertTrue(scope.streams.sealStream(scope.name, "sealed"), "to seal again is no error");
        assertTrue(scope.info("sealed").isSealed());
        Event.assertSame(Event.numbered(3, 0, 30), scope.read("sealed", StreamCut.UNBOUNDED, tail));
        assertThrows(
                UnsupportedOperationException.class,
                () -> scope.streams.updateStream(scope.name, "sealed", Scope.fixed(4)));
        assertThrows(
                UnsupportedOperationException.class, () -> scope.streams.truncateStream(scope.name, "sealed", tail));
        assertThrows(InvalidStreamException.class, () -> scope.streams.sealStream(scope.name, "never"));
    }

    @Test
    void aDeletedStreamIsGoneAndItsNameStartsAnew() {
        scope.create("deleted", 1);
        scope.write("deleted", Event.numbered(2, 0, 20));
        long before = only(scope.tail("deleted"));
        assertThrows(IllegalArgumentException.class, () -> scope.streams.deleteStream(scope.name, "deleted"));
        assertTrue(scope.streams.sealStream(scope.name, "deleted"));
        assertTrue(scope.streams.deleteStream(scope.name, "deleted"));
        assertFalse(scope.streams.deleteStream(scope.name, "deleted"));
        assertFalse(scope.streams.checkStreamExists(scope.name, "deleted"));
        scope.create("deleted", 1);
        assertEquals(List.of(), scope.read("deleted"));
        scope.write("deleted", Event.numbered(2, 50, 20));
        Event.assertSame(Event.numbered(2, 50, 20), scope.read("deleted"));
        assertTrue(only(scope.tail("deleted")) > before, "a segment's number is not used again");
    }

    private static long only(StreamCut cut) {
        Map<?, Long> positions = cut.asImpl().getPositions();
        assertEquals(1, positions.size());
        return cut.asImpl().getPositions().keySet().iterator().next().getSegmentId();
    }
}
