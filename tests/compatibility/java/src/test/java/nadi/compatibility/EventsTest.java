package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Event writers. What they wrote is read back with the batch client; reader groups have tests of their own. */
class EventsTest {
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(EventsTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    @Test
    void eventsOfAKeyKeepTheirOrderWhileTheStreamIsScaled() throws Exception {
        Stream stream = scope.create("scaled", 2);
        List<Event> events = Event.numbered(20, 0, 6_000);
        try (EventStreamWriter<String> writer = scope.writer("scaled")) {
            CompletableFuture<Void> scaled = null;
            for (int i = 0; i < events.size(); i++) {
                Event event = events.get(i);
                writer.writeEvent(event.key(), event.toString());
                if (i % 2_000 == 1_000) {
                    if (scaled != null) {
                        scaled.get();
                    }
                    int segments = List.of(4, 2, 3).get(i / 2_000);
                    scaled = CompletableFuture.runAsync(() -> scaleUnchecked(stream, segments), scope.executor);
                    Thread.sleep(5); // so that some events meet the scale and some don't
                }
            }
            scaled.get();
            writer.flush();
        }
        assertEquals(3, scope.tail("scaled").asImpl().getPositions().size());
        Event.assertSame(events, scope.read("scaled"));
    }

    private static void scaleUnchecked(Stream stream, int segments) {
        try {
            scope.scale(stream, segments);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    @Test
    void twoWritersOfDifferentKeysDoNotDisturbEachOther() throws Exception {
        scope.create("writers", 2);
        CompletableFuture<?>[] both = IntStream.range(0, 2)
                .mapToObj(i -> CompletableFuture.runAsync(
                        () -> scope.write("writers", keyed("writer" + i, 1_000)), scope.executor))
                .toArray(CompletableFuture[]::new);
        CompletableFuture.allOf(both).get();
        List<Event> expected = new ArrayList<>(keyed("writer0", 1_000));
        expected.addAll(keyed("writer1", 1_000));
        Event.assertSame(expected, scope.read("writers"));
    }

    private static List<Event> keyed(String key, int count) {
        return IntStream.range(0, count).mapToObj(i -> new Event(key, i)).toList();
    }

    @Test
    void aBatchOfEventsStandsTogether() throws Exception {
        scope.create("batch", 1);
        try (EventStreamWriter<String> writer = scope.writer("batch");
                EventStreamWriter<String> other = scope.writer("batch")) {
            CompletableFuture<Void> noise = CompletableFuture.runAsync(
                    () -> IntStream.range(0, 500).forEach(i -> other.writeEvent("k", "noise#" + i)), scope.executor);
            for (int i = 0; i < 20; i++) {
                writer.writeEvents("k", List.of("a#" + i, "b#" + i, "c#" + i)).get();
            }
            noise.get();
            other.flush();
        }
        List<String> found = scope.read("batch");
        assertEquals(560, found.size());
        for (int i = 0; i < 20; i++) {
            int at = found.indexOf("a#" + i);
            assertEquals(List.of("a#" + i, "b#" + i, "c#" + i), found.subList(at, at + 3));
        }
    }

    @Test
    void eventsWithoutAKeyAreSpreadAndAllThere() {
        scope.create("keyless", 3);
        try (EventStreamWriter<String> writer = scope.writer("keyless")) {
            IntStream.range(0, 300).forEach(i -> writer.writeEvent("event " + i));
            writer.flush();
        }
        List<String> found = scope.read("keyless");
        assertEquals(300, found.size());
        assertEquals(300, new TreeSet<>(found).size());
        assertEquals(3, scope.tail("keyless").asImpl().getPositions().values().stream().filter(end -> end > 0).count());
    }

    @Test
    void anEventOfNoBytesIsAnEvent() throws Exception {
        scope.create("empty", 1);
        try (EventStreamWriter<String> writer = scope.writer("empty")) {
            writer.writeEvent("k", "before").get();
            writer.writeEvent("k", "").get();
            writer.writeEvent("k", "after").get();
        }
        assertEquals(List.of("before", "", "after"), scope.read("empty"));
    }

    @Test
    void eventsUpToEightMebibytesAreWrittenAsTheyAre() throws Exception {
        scope.create("large", 1);
        List<byte[]> events = List.of(random(1, 8 << 20), random(2, 10), random(3, 8 << 20), random(4, 3_000_000));
        try (EventStreamWriter<byte[]> writer = scope.events.createEventWriter(
                "large", new ByteArraySerializer(), EventWriterConfig.builder().build())) {
            List<CompletableFuture<Void>> all = events.stream().map(event -> writer.writeEvent("k", event)).toList();
            for (CompletableFuture<Void> one : all) {
                one.get();
            }
            assertThrows(IllegalArgumentException.class, () -> writer.writeEvent("k", new byte[(8 << 20) + 1]));
        }
        assertSameBytes(events, "large");
    }

    @Test
    void largerEventsAreWrittenInPieces() throws Exception {
        scope.create("huge", 1);
        List<byte[]> events = List.of(random(5, 10), random(6, 20_000_000), random(7, 10));
        EventWriterConfig config = EventWriterConfig.builder().enableLargeEvents(true).build();
        try (EventStreamWriter<byte[]> writer =
                scope.events.createEventWriter("huge", new ByteArraySerializer(), config)) {
            for (byte[] event : events) {
                writer.writeEvent("k", event).get();
            }
        }
        assertSameBytes(events, "huge");
    }

    private static byte[] random(int seed, int size) {
        byte[] data = new byte[size];
        new Random(seed).nextBytes(data);
        return data;
    }

    private static void assertSameBytes(List<byte[]> expected, String stream) {
        var segments = scope.segments(stream, StreamCut.UNBOUNDED, scope.tail(stream));
        assertEquals(1, segments.size());
        try (SegmentIterator<byte[]> found = scope.slices.readSegment(segments.get(0), new ByteArraySerializer())) {
            for (byte[] event : expected) {
                assertArrayEquals(event, found.next());
            }
            assertEquals(false, found.hasNext());
        }
    }

    @Test
    void writersShareConnectionsWhereTheyAreToldTo() {
        scope.create("pooled", 4);
        EventWriterConfig config = EventWriterConfig.builder().enableConnectionPooling(true).build();
        List<EventStreamWriter<String>> writers = IntStream.range(0, 5)
                .mapToObj(i -> scope.events.createEventWriter("pooled", Scope.TEXT, config))
                .toList();
        List<Event> expected = new ArrayList<>();
        for (int number = 0; number < 200; number++) {
            for (int i = 0; i < writers.size(); i++) {
                Event event = new Event("writer" + i, number);
                writers.get(i).writeEvent(event.key(), event.toString());
                expected.add(event);
            }
        }
        writers.forEach(EventStreamWriter::close); // which flushes
        Event.assertSame(expected, scope.read("pooled"));
    }
}
