package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.batch.StreamSegmentsIterator;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The batch client: the segments of a slice between two stream cuts, and each one's events. */
class SlicesTest {
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(SlicesTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    @Test
    void aSliceHasTheEventsBetweenItsCuts() {
        scope.create("plain", 3);
        scope.write("plain", Event.numbered(7, 0, 70));
        StreamCut from = scope.tail("plain");
        scope.write("plain", Event.numbered(7, 10, 70));
        StreamCut to = scope.tail("plain");
        scope.write("plain", Event.numbered(7, 20, 70));
        Event.assertSame(Event.numbered(7, 10, 70), scope.read("plain", from, to));
        Event.assertSame(Event.numbered(7, 0, 140), scope.read("plain", StreamCut.UNBOUNDED, to));
        Event.assertSame(Event.numbered(7, 10, 140), scope.read("plain", from, StreamCut.UNBOUNDED));
        assertEquals(List.of(), scope.read("plain", from, from));
    }

    @Test
    void aSliceGoesOverScales() throws Exception {
        Stream stream = scope.create("scaled", 1);
        scope.write("scaled", Event.numbered(9, 0, 90));
        StreamCut from = scope.tail("scaled");
        scope.write("scaled", Event.numbered(9, 10, 90));
        scope.scale(stream, 3);
        scope.write("scaled", Event.numbered(9, 20, 90));
        scope.scale(stream, 2); // each of which has two of the three before it
        scope.write("scaled", Event.numbered(9, 30, 90));
        StreamCut to = scope.tail("scaled");
        scope.write("scaled", Event.numbered(9, 40, 90));
        List<SegmentRange> segments = scope.segments("scaled", from, to);
        assertEquals(6, segments.size());
        assertEquals(6, segments.stream().map(SegmentRange::getSegmentId).collect(Collectors.toSet()).size());
        Event.assertSame(Event.numbered(9, 10, 270), scope.read("scaled", from, to));
    }

    @Test
    void theIteratorSaysItsCuts() {
        Stream stream = scope.create("bounds", 2);
        scope.write("bounds", Event.numbered(3, 0, 30));
        StreamCut to = scope.tail("bounds");
        StreamSegmentsIterator whole = scope.slices.getSegments(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED);
        assertEquals(scope.head("bounds"), whole.getStartStreamCut());
        assertEquals(to, whole.getEndStreamCut());
        long bytes = Scope.list(whole.getIterator()).stream()
                .mapToLong(segment -> segment.getEndOffset() - segment.getStartOffset())
                .sum();
        assertEquals(to.asImpl().getPositions().values().stream().mapToLong(Long::longValue).sum(), bytes);
    }

    @Test
    void aSegmentIsReadInPartsAndAgain() {
        scope.create("parts", 1);
        scope.write("parts", Event.numbered(1, 0, 100));
        SegmentRange whole = scope.segments("parts", StreamCut.UNBOUNDED, StreamCut.UNBOUNDED).get(0);
        for (int again = 0; again < 2; again++) {
            List<String> events = new ArrayList<>();
            long offset = whole.getStartOffset();
            try (SegmentIterator<String> iterator = scope.slices.readSegment(whole, Scope.TEXT)) {
                while (iterator.hasNext()) {
                    assertEquals(offset, iterator.getOffset());
                    String event = iterator.next();
                    offset += 8 + event.length();
                    events.add(event);
                }
            }
            assertEquals(Event.texts(Event.numbered(1, 0, 100)), events);
            assertEquals(whole.getEndOffset(), offset);
        }
    }

    @Test
    void aSliceOfTruncatedEventsSaysSo() {
        scope.create("truncated", 1);
        StreamCut head = scope.head("truncated");
        scope.write("truncated", Event.numbered(1, 0, 10));
        StreamCut middle = scope.tail("truncated");
        scope.write("truncated", Event.numbered(1, 10, 10));
        List<SegmentRange> segments = scope.segments("truncated", head, scope.tail("truncated"));
        scope.streams.truncateStream(scope.name, "truncated", middle);
        try (SegmentIterator<String> iterator = scope.slices.readSegment(segments.get(0), Scope.TEXT)) {
            assertThrows(TruncatedDataException.class, iterator::next);
        }
        Event.assertSame(Event.numbered(1, 10, 10), scope.read("truncated"));
    }
}
