package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.ConfigMismatchException;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupConfig.ReaderGroupConfigBuilder;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.ReaderGroupNotFoundException;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.notifications.EndOfDataNotification;
import io.pravega.client.stream.notifications.SegmentNotification;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Reader groups: segments shared by readers that come and go, checkpoints, stream cuts, and the way back to them. */
class ReaderGroupsTest {
    private static final int LASTING = 6; // checkpoints
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(ReaderGroupsTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    /** A configuration that looks for news often and makes no checkpoint by itself. */
    private static ReaderGroupConfigBuilder config() {
        return ReaderGroupConfig.builder().groupRefreshTimeMillis(200).disableAutomaticCheckpoints();
    }

    /** The same with checkpoints, at which alone this client passes segments on and takes up successors. */
    private static ReaderGroupConfigBuilder checkpointing() {
        return ReaderGroupConfig.builder().groupRefreshTimeMillis(200).automaticCheckpointIntervalMillis(500);
    }

    private static ReaderGroup group(String name, ReaderGroupConfig config) {
        assertTrue(scope.groups.createReaderGroup(name, config));
        return scope.groups.getReaderGroup(name);
    }

    private static List<String> drain(String group, int count) throws InterruptedException {
        List<String> found = Reading.shared();
        try (Reading reader = new Reading(scope, group, "drain", found)) {
            reader.awaitFound(count);
        }
        return found;
    }

    private static long bytes(List<Event> events) {
        return events.stream().mapToLong(event -> 8 + event.toString().length()).sum();
    }

    @Test
    void eventsOfAKeyAreReadInOrderAcrossScalesToTheEnd() throws Exception {
        Stream stream = scope.create("scaled", 1);
        try (ReaderGroup group = group("over-scales", checkpointing().stream(stream).build());
                Reading reader = new Reading(scope, "over-scales", "reader", Reading.shared())) {
            scope.write("scaled", Event.numbered(10, 0, 300));
            scope.scale(stream, 3);
            scope.write("scaled", Event.numbered(10, 30, 300));
            reader.awaitFound(400);
            scope.scale(stream, 2);
            scope.write("scaled", Event.numbered(10, 60, 300));
            scope.streams.sealStream(scope.name, "scaled");
            reader.await(() -> reader.completed);
            Event.assertSame(Event.numbered(10, 0, 900), reader.found);
            assertEquals(Set.of(), group.getStreamNames(), "nothing is left to read");
        }
    }

    @Test
    void readersShareTheSegmentsAsTheyComeAndGo() throws Exception {
        Stream stream = scope.create("shared", 4);
        List<String> found = Reading.shared();
        try (ReaderGroup group = group("sharing", checkpointing().stream(stream).build());
                Reading first = new Reading(scope, "sharing", "first", found)) {
            scope.write("shared", Event.numbered(20, 0, 200));
            first.awaitFound(200);
            try (Reading second = new Reading(scope, "sharing", "second", found)) {
                awaitLastingShares(group, first, second, 4);
                scope.write("shared", Event.numbered(20, 10, 400));
                first.awaitFound(600);
                assertEquals(Set.of("first", "second"), group.getOnlineReaders());
                assertFalse(second.own.isEmpty());
                first.close();
                awaitDistribution(group, Map.of("second", 4));
                scope.write("shared", Event.numbered(20, 30, 200));
                second.awaitFound(800);
            }
            assertEquals(Set.of(), group.getOnlineReaders());
        }
        Event.assertSame(Event.numbered(20, 0, 800), found);
    }

    private static void awaitDistribution(ReaderGroup group, Map<String, Integer> expected) throws InterruptedException {
        while (!shares(group).equals(expected)) {
            Thread.sleep(100);
        }
    }

    /**
     * Wait until each of the readers has a share of the segments that lasts. Who of them has more is not said: this client
     * takes a reader that has read nothing yet for an idle one, so even shares may only be passed on the way to others.
     */
    private static void awaitLastingShares(ReaderGroup group, Reading one, Reading other, int segments)
            throws InterruptedException {
        Map<String, Integer> last = Map.of();
        int since = passed(one, other);
        while (!isShared(last, Set.of(one.id, other.id), segments) || passed(one, other) - since < LASTING) {
            Thread.sleep(100);
            Map<String, Integer> now = shares(group);
            if (!now.equals(last)) {
                last = now;
                since = passed(one, other);
            }
        }
    }

    /** How many checkpoints both have passed. */
    private static int passed(Reading one, Reading other) {
        return Math.min(one.checkpoints.size(), other.checkpoints.size());
    }

    private static boolean isShared(Map<String, Integer> shares, Set<String> readers, int segments) {
        return shares.keySet().equals(readers)
                && shares.values().stream().allMatch(share -> share > 0)
                && shares.values().stream().mapToInt(Integer::intValue).sum() == segments;
    }

    private static Map<String, Integer> shares(ReaderGroup group) {
        return group.getReaderSegmentDistribution().getReaderSegmentDistribution();
    }

    @Test
    void anotherReaderGoesOnWhereAVanishedOneStood() throws Exception {
        Stream stream = scope.create("vanished", 2);
        scope.write("vanished", Event.numbered(6, 0, 120));
        List<String> found = Reading.shared();
        try (ReaderGroup group = group("vanishing", config().stream(stream).build())) {
            Reading dead = new Reading(scope, "vanishing", "dead", found);
            dead.awaitFound(1);
            dead.vanish();
            scope.write("vanished", Event.numbered(6, 20, 120));
            group.readerOffline("dead", dead.position);
            assertEquals(Set.of(), group.getOnlineReaders());
            try (Reading other = new Reading(scope, "vanishing", "other", found)) {
                other.awaitFound(240);
            }
        }
        Event.assertSame(Event.numbered(6, 0, 240), found);
    }

    @Test
    void withoutAPositionAVanishedReadersEventsAreReadAgain() throws Exception {
        Stream stream = scope.create("forgotten", 2);
        scope.write("forgotten", Event.numbered(4, 0, 80));
        try (ReaderGroup group = group("forgetting", config().stream(stream).build())) {
            Reading dead = new Reading(scope, "forgetting", "dead", Reading.shared());
            dead.awaitFound(40);
            dead.vanish();
            group.readerOffline("dead", null);
            Event.assertSame(Event.numbered(4, 0, 80), drain("forgetting", 80));
        }
    }

    @Test
    void aGroupReturnsToACheckpoint() throws Exception {
        Stream stream = scope.create("checkpointed", 4);
        try (ReaderGroup group = group("checkpointing", config().stream(stream).build())) {
            List<String> found = Reading.shared();
            scope.write("checkpointed", Event.numbered(12, 0, 240));
            Reading one = new Reading(scope, "checkpointing", "one", found);
            Reading two = new Reading(scope, "checkpointing", "two", found);
            one.awaitFound(100);
            Checkpoint checkpoint =
                    group.initiateCheckpoint("here", scope.executor).get(60, TimeUnit.SECONDS);
            assertEquals("here", checkpoint.getName());
            scope.write("checkpointed", Event.numbered(12, 20, 240));
            one.awaitFound(480);
            List<String> after = new ArrayList<>();
            for (Reading reader : List.of(one, two)) {
                assertNotNull(reader.checkpoints.get("here"), "each reader is told of the checkpoint");
                after.addAll(reader.own.subList(reader.checkpoints.get("here"), reader.own.size()));
            }
            Checkpoint stored = Checkpoint.fromBytes(checkpoint.toBytes());
            group.resetReaderGroup(config().startFromCheckpoint(stored).build());
            one.await(() -> one.reset && two.reset);
            one.close();
            two.close();
            List<String> again = drain("checkpointing", after.size());
            assertEquals(sorted(after), sorted(again));
            assertTrue(again.size() >= 240);
        }
    }

    private static List<String> sorted(List<String> events) {
        return events.stream().sorted().toList();
    }

    @Test
    void aGroupReturnsToItsLastCheckpointByItself() throws Exception {
        Stream stream = scope.create("returned", 1);
        try (ReaderGroup group = group("returning", config().stream(stream).build())) {
            scope.write("returned", Event.numbered(2, 0, 20));
            Reading reader = new Reading(scope, "returning", "reader", Reading.shared());
            reader.awaitFound(20);
            group.initiateCheckpoint("last", scope.executor).get(60, TimeUnit.SECONDS);
            scope.write("returned", Event.numbered(2, 10, 20));
            reader.awaitFound(40);
            group.resetReaderGroup();
            reader.await(() -> reader.reset);
            reader.close();
            Event.assertSame(Event.numbered(2, 10, 20), drain("returning", 20));
        }
    }

    @Test
    void checkpointsAreMadeAutomatically() throws Exception {
        Stream stream = scope.create("automatic", 2);
        try (ReaderGroup group = group("automatically", checkpointing().stream(stream).build());
                Reading reader = new Reading(scope, "automatically", "reader", Reading.shared())) {
            scope.write("automatic", Event.numbered(4, 0, 40));
            reader.awaitFound(40);
            reader.await(() -> reader.checkpoints.size() >= 3);
            // What the group knows of its position is what the last checkpoint says: everything was read.
            StreamCut tail = scope.tail("automatic");
            reader.await(() -> group.getStreamCuts().get(stream).equals(tail));
            assertEquals(0, group.getMetrics().unreadBytes());
        }
    }

    @Test
    void streamCutsBoundWhatAGroupReads() throws Exception {
        Stream stream = scope.create("bounded", 2);
        scope.write("bounded", Event.numbered(6, 0, 60));
        StreamCut from = scope.tail("bounded");
        scope.write("bounded", Event.numbered(6, 10, 60));
        scope.scale(stream, 3);
        scope.write("bounded", Event.numbered(6, 20, 60));
        StreamCut to = scope.tail("bounded");
        scope.write("bounded", Event.numbered(6, 30, 60));
        try (ReaderGroup group = group("within-bounds", checkpointing().stream(stream, from, to).build());
                Reading reader = new Reading(scope, "within-bounds", "reader", Reading.shared())) {
            // At the end of an open segment's part this client says nothing; further checkpoints show that it looked.
            reader.awaitFound(120);
            int passed = reader.checkpoints.size();
            reader.await(() -> reader.checkpoints.size() >= passed + 2);
            Event.assertSame(Event.numbered(6, 10, 120), reader.found);
            assertEquals(0, group.getMetrics().unreadBytes());
        }
    }

    @Test
    void generatedStreamCutsSayWhatIsLeftToRead() throws Exception {
        Stream stream = scope.create("generated", 3);
        scope.write("generated", Event.numbered(9, 0, 180));
        try (ReaderGroup group = group("generating", config().stream(stream).build());
                Reading reader = new Reading(scope, "generating", "reader", Reading.shared())) {
            reader.awaitFound(30);
            CompletableFuture<Map<Stream, StreamCut>> cuts = group.generateStreamCuts(scope.executor);
            StreamCut cut = cuts.get(60, TimeUnit.SECONDS).get(stream);
            assertEquals(Map.of(), reader.checkpoints, "the readers are not told of a silent checkpoint");
            scope.write("generated", Event.numbered(9, 20, 180));
            reader.awaitFound(360);
            List<String> left = scope.read("generated", cut, scope.tail("generated"));
            int read = 360 - left.size();
            assertEquals(sorted(reader.own.subList(read, 360)), sorted(left));
            group.resetReaderGroup(config().startFromStreamCuts(Map.of(stream, cut)).build());
            reader.await(() -> reader.reset);
            assertEquals(sorted(left), sorted(drain("generating", left.size())));
        }
    }

    @Test
    void unreadBytesAreThoseAfterTheLastCheckpoint() throws Exception {
        Stream stream = scope.create("unread", 2);
        List<Event> first = Event.numbered(4, 0, 40);
        List<Event> second = Event.numbered(4, 10, 60);
        scope.write("unread", first);
        try (ReaderGroup group = group("metrics", config().stream(stream).build())) {
            assertEquals(bytes(first), group.getMetrics().unreadBytes());
            try (Reading reader = new Reading(scope, "metrics", "reader", Reading.shared())) {
                reader.awaitFound(40);
                group.initiateCheckpoint("read", scope.executor).get(60, TimeUnit.SECONDS);
            }
            assertEquals(0, group.getMetrics().unreadBytes());
            scope.write("unread", second);
            assertEquals(bytes(second), group.getMetrics().unreadBytes());
            scope.scale(stream, 3);
            scope.write("unread", first);
            assertEquals(bytes(second) + bytes(first), group.getMetrics().unreadBytes());
        }
    }

    @Test
    void anEventIsFetchedAgainByItsPointer() throws Exception {
        Stream stream = scope.create("pointed", 1);
        scope.write("pointed", Event.numbered(1, 0, 10));
        try (ReaderGroup group = group("pointing", config().stream(stream).build());
                EventStreamReader<String> reader = scope.events.createReader(
                        "reader", group.getGroupName(), Scope.TEXT, ReaderConfig.builder().build())) {
            List<EventPointer> pointers = new ArrayList<>();
            while (pointers.size() < 10) {
                EventRead<String> read = reader.readNextEvent(1_000);
                if (read.getEvent() != null) {
                    pointers.add(EventPointer.fromBytes(read.getEventPointer().toBytes()));
                }
            }
            for (int i : List.of(7, 0, 9)) {
                assertEquals("key0#" + i, reader.fetchEvent(pointers.get(i)));
                assertEquals("key0#" + i, scope.streams.fetchEvent(pointers.get(i), Scope.TEXT).join());
            }
        }
    }

    @Test
    void aGroupIsCreatedOnceAndDeletedOnce() throws Exception {
        Stream stream = scope.create("managed", 1);
        ReaderGroupConfig config = config().stream(stream).build();
        assertTrue(scope.groups.createReaderGroup("managed", config));
        assertTrue(scope.groups.createReaderGroup("managed", config), "the same again changes nothing");
        ReaderGroupConfig other = config().groupRefreshTimeMillis(7_000).stream(stream).build();
        assertThrows(ConfigMismatchException.class, () -> scope.groups.createReaderGroup("managed", other));
        assertThrows(ReaderGroupNotFoundException.class, () -> scope.groups.getReaderGroup("never"));
        scope.groups.deleteReaderGroup("managed");
        assertThrows(ReaderGroupNotFoundException.class, () -> scope.groups.getReaderGroup("managed"));
        assertTrue(scope.groups.createReaderGroup("managed", other), "the name is free again");
        scope.write("managed", Event.numbered(1, 0, 5));
        assertEquals(Event.texts(Event.numbered(1, 0, 5)), drain("managed", 5));
    }

    @Test
    void aGroupReadsSeveralStreams() throws Exception {
        Stream left = scope.create("left", 2);
        Stream right = scope.create("right", 1);
        try (ReaderGroup group = group("both", config().stream(left).stream(right).build())) {
            List<Event> even = Event.numbered(8, 0, 80).stream().filter(event -> event.key().endsWith("2")).toList();
            List<Event> odd = Event.numbered(8, 0, 80).stream().filter(event -> event.key().endsWith("3")).toList();
            scope.write("left", even);
            scope.write("right", odd);
            List<Event> expected = new ArrayList<>(even);
            expected.addAll(odd);
            Event.assertSame(expected, drain("both", 20));
            assertEquals(Set.of(left.getScopedName(), right.getScopedName()), group.getStreamNames());
        }
    }

    @Test
    void aGroupSaysWhatMayBeDropped() throws Exception {
        Stream stream = scope.create("consumed", 2);
        ReaderGroupConfig config = config()
                .stream(stream)
                .retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT)
                .build();
        try (ReaderGroup group = group("consuming", config)) {
            List<String> subscribers = scope.controller.listSubscribers(scope.name, "consumed").get();
            assertEquals(List.of(scope.name + "/consuming"), subscribers);
            scope.write("consumed", Event.numbered(4, 0, 40));
            StreamCut cut = scope.tail("consumed");
            group.updateRetentionStreamCut(Map.of(stream, cut));
            scope.write("consumed", Event.numbered(4, 10, 40));
            group.updateRetentionStreamCut(Map.of(stream, scope.tail("consumed")));
        }
        scope.groups.deleteReaderGroup("consuming");
        assertEquals(List.of(), scope.controller.listSubscribers(scope.name, "consumed").get());
    }

    @Test
    void checkpointsReleaseWhatWasReadBefore() throws Exception {
        Stream stream = scope.create("released", 1);
        ReaderGroupConfig config = config()
                .stream(stream)
                .retentionType(StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT)
                .build();
        try (ReaderGroup group = group("releasing", config);
                Reading reader = new Reading(scope, "releasing", "reader", Reading.shared())) {
            assertEquals(
                    List.of(scope.name + "/releasing"),
                    scope.controller.listSubscribers(scope.name, "released").get());
            scope.write("released", Event.numbered(2, 0, 20));
            reader.awaitFound(20);
            group.initiateCheckpoint("done", scope.executor).get(60, TimeUnit.SECONDS);
            scope.write("released", Event.numbered(2, 10, 20));
            reader.awaitFound(40);
            Event.assertSame(Event.numbered(2, 0, 40), reader.found);
        }
    }

    @Test
    void listenersHearOfSegmentsAndOfTheEnd() throws Exception {
        Stream stream = scope.create("heard", 1);
        LinkedBlockingQueue<Integer> segments = new LinkedBlockingQueue<>();
        CompletableFuture<EndOfDataNotification> end = new CompletableFuture<>();
        try (ReaderGroup group = group("listening", checkpointing().stream(stream).build());
                Reading reader = new Reading(scope, "listening", "reader", Reading.shared())) {
            group.getSegmentNotifier(scope.executor)
                    .registerListener((SegmentNotification heard) -> segments.add(heard.getNumOfSegments()));
            group.getEndOfDataNotifier(scope.executor).registerListener(end::complete);
            assertEquals(1, segments.poll(60, TimeUnit.SECONDS));
            scope.scale(stream, 3);
            assertEquals(3, segments.poll(60, TimeUnit.SECONDS));
            scope.write("heard", Event.numbered(3, 0, 30));
            scope.streams.sealStream(scope.name, "heard");
            end.get(60, TimeUnit.SECONDS);
            reader.await(() -> reader.completed);
            Event.assertSame(Event.numbered(3, 0, 30), reader.found);
        }
    }

    @Test
    void aTruncatedReaderGoesOnAtTheHead() throws Exception {
        Stream stream = scope.create("truncated", 1);
        scope.write("truncated", Event.numbered(1, 0, 10));
        StreamCut cut = scope.tail("truncated");
        scope.write("truncated", Event.numbered(1, 10, 10));
        try (ReaderGroup group = group("truncating", config().stream(stream).build())) {
            scope.streams.truncateStream(scope.name, "truncated", cut);
            assertEquals(Set.of(), group.getOnlineReaders());
            List<String> found = new ArrayList<>();
            int truncations = 0;
            try (EventStreamReader<String> reader =
                    scope.events.createReader("reader", "truncating", Scope.TEXT, ReaderConfig.builder().build())) {
                while (found.size() < 10) {
                    try {
                        String event = reader.readNextEvent(1_000).getEvent();
                        if (event != null) {
                            found.add(event);
                        }
                    } catch (io.pravega.client.stream.TruncatedDataException expected) {
                        truncations++;
                    }
                }
            }
            assertEquals(1, truncations);
            assertEquals(Event.texts(Event.numbered(1, 10, 10)), found);
        }
    }
}
