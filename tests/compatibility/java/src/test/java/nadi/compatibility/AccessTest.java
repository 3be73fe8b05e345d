package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.pravega.client.BatchClientFactory;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TimeWindow;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What users without all rights may do. Everybody has the password of the user who runs the tests. */
class AccessTest {
    private static final String PASSWORD = System.getProperty("nadi.password");
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(AccessTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    /** The gRPC status with which a call was refused. */
    private static Status.Code refusal(Executable call) {
        Throwable error = assertThrows(Exception.class, call);
        while (!(error instanceof StatusRuntimeException) && error.getCause() != null) {
            error = error.getCause();
        }
        return Status.fromThrowable(error).getCode();
    }

    @Test
    void aReaderMayLookButNotChange() {
        Stream stream = scope.create("read", 1);
        scope.write("read", Event.numbered(2, 0, 20));
        try (StreamManager streams = StreamManager.create(scope.client("reader", PASSWORD));
                BatchClientFactory slices = BatchClientFactory.withScope(scope.name, scope.client("reader", PASSWORD));
                EventStreamClientFactory events =
                        EventStreamClientFactory.withScope(scope.name, scope.client("reader", PASSWORD))) {
            assertTrue(streams.checkStreamExists(scope.name, "read"));
            List<String> found = new ArrayList<>();
            for (SegmentRange segment : Scope.list(slices.getSegments(stream, StreamCut.UNBOUNDED, scope.tail("read"))
                    .getIterator())) {
                try (SegmentIterator<String> iterator = slices.readSegment(segment, Scope.TEXT)) {
                    iterator.forEachRemaining(found::add);
                }
            }
            Event.assertSame(Event.numbered(2, 0, 20), found);
            assertEquals(
                    Status.Code.PERMISSION_DENIED,
                    refusal(() -> streams.createStream(scope.name, "forbidden", Scope.fixed(1))));
            assertEquals(Status.Code.PERMISSION_DENIED, refusal(() -> streams.sealStream(scope.name, "read")));
            EventWriterConfig config = EventWriterConfig.builder().retryAttempts(1).build();
            assertEquals(Status.Code.PERMISSION_DENIED, refusal(() -> {
                try (EventStreamWriter<String> writer = events.createEventWriter("read", Scope.TEXT, config)) {
                    writer.writeEvent("key0", "key0#10").get();
                }
            }));
        }
        assertFalse(scope.streams.checkStreamExists(scope.name, "forbidden"));
        Event.assertSame(Event.numbered(2, 0, 20), scope.read("read"));
    }

    /** Its group's state it may write, and the watermarks, which the client asks to write as well, only read. */
    @Test
    void aReaderMayReadInAGroupAndLearnTimes() throws Exception {
        Stream stream = scope.create("timed", 1);
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(scope.name, scope.client("reader", PASSWORD));
                EventStreamClientFactory events =
                        EventStreamClientFactory.withScope(scope.name, scope.client("reader", PASSWORD));
                EventStreamWriter<String> writer = scope.writer("timed")) {
            groups.createReaderGroup(
                    "watching", ReaderGroupConfig.builder().groupRefreshTimeMillis(200).stream(stream).build());
            try (EventStreamReader<String> reader =
                    events.createReader("reader", "watching", Scope.TEXT, ReaderConfig.builder().build())) {
                TimeWindow window = new TimeWindow(null, null);
                for (int number = 0; window.getLowerTimeBound() == null; number++) {
                    writer.writeEvent("key0", new Event("key0", number).toString()).join();
                    writer.noteTime(1_000L + number);
                    String event = null;
                    while (event == null) {
                        event = reader.readNextEvent(1_000).getEvent();
                    }
                    assertEquals("key0#" + number, event);
                    window = reader.getCurrentTimeWindow(stream);
                    Thread.sleep(200);
                }
            }
            groups.deleteReaderGroup("watching");
        }
    }

    @Test
    void aStrangerIsRefused() {
        scope.create("hidden", 1);
        try (StreamManager streams = StreamManager.create(scope.client("stranger", PASSWORD))) {
            assertEquals(
                    Status.Code.PERMISSION_DENIED, refusal(() -> streams.getStreamTags(scope.name, "hidden")));
            assertEquals(Status.Code.PERMISSION_DENIED, refusal(() -> streams.deleteScopeRecursive(scope.name)));
        }
        assertTrue(scope.streams.checkStreamExists(scope.name, "hidden"));
    }

    @Test
    void aWrongPasswordIsRefused() {
        try (StreamManager streams = StreamManager.create(scope.client("reader", "wrong"))) {
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(() -> Scope.list(streams.listScopes())));
        }
        try (StreamManager streams = StreamManager.create(scope.client(null, null))) {
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(() -> Scope.list(streams.listScopes())));
        }
    }
}
