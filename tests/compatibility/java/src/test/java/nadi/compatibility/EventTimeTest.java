package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.impl.WriterPosition;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Event time: what writers say about it, and the window in which a reader stands. */
class EventTimeTest {
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(EventTimeTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    private static EventStreamReader<String> reader(String group) {
        return scope.events.createReader("reader", group, Scope.TEXT, ReaderConfig.builder().build());
    }

    private static ReaderGroup group(String name, Stream stream) {
        scope.groups.createReaderGroup(
                name,
                ReaderGroupConfig.builder()
                        .groupRefreshTimeMillis(200)
                        .disableAutomaticCheckpoints()
                        .stream(stream)
                        .build());
        return scope.groups.getReaderGroup(name);
    }

    @Test
    void withoutNotedTimesAWindowHasNoBounds() {
        Stream stream = scope.create("timeless", 1);
        scope.write("timeless", Event.numbered(1, 0, 10));
        try (ReaderGroup group = group("timeless-readers", stream);
                EventStreamReader<String> reader = reader("timeless-readers")) {
            EventRead<String> read = reader.readNextEvent(60_000);
            assertEquals("key0#0", read.getEvent());
            TimeWindow window = reader.getCurrentTimeWindow(stream);
            assertNull(window.getLowerTimeBound());
            assertNull(window.getUpperTimeBound());
        }
    }

    @Test
    void aWritersTimesOnlyGrow() {
        Stream stream = Stream.of(scope.name, "noted");
        StreamConfiguration patient = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(1))
                .timestampAggregationTimeout(600_000) // else a watermark between two calls forgets a writer behind it
                .build();
        assertTrue(scope.controller.createStream(scope.name, "noted", patient).join()); // StreamManager drops it
        scope.write("noted", Event.numbered(1, 0, 10));
        WriterPosition position = new WriterPosition(scope.tail("noted").asImpl().getPositions());
        scope.controller.noteTimestampFromWriter("writer", stream, 2_000, position).join();
        var earlier = scope.controller.noteTimestampFromWriter("writer", stream, 1_000, position);
        assertThrows(CompletionException.class, earlier::join);
        scope.controller.noteTimestampFromWriter("other", stream, 1_000, position).join();
        // ahead of the stalled writer, so that it isn't forgotten between the client's tries to remove it
        scope.controller.noteTimestampFromWriter("other", stream, 3_000, position).join();
        scope.controller.removeWriter("other", stream).join();
    }

    @Test
    void aReaderLearnsTheTimesThatItsWriterNoted() throws Exception {
        Stream stream = scope.create("timed", 1);
        try (ReaderGroup group = group("timed-readers", stream);
                EventStreamReader<String> reader = reader("timed-readers");
                EventStreamWriter<String> writer = scope.writer("timed")) {
            int number = 0;
            TimeWindow window = new TimeWindow(null, null);
            while (window.getLowerTimeBound() == null) {
                writer.writeEvent("key0", new Event("key0", number).toString()).join();
                writer.noteTime(1_000L + number);
                assertEquals("key0#" + number, next(reader));
                window = reader.getCurrentTimeWindow(stream);
                number++;
                Thread.sleep(200);
            }
            long lower = window.getLowerTimeBound();
            assertTrue(lower >= 1_000 && lower < 1_000 + number, "no time that nobody noted: " + lower);
        }
    }

    private static String next(EventStreamReader<String> reader) {
        String event = null;
        while (event == null) {
            event = reader.readNextEvent(1_000).getEvent();
        }
        return event;
    }
}
