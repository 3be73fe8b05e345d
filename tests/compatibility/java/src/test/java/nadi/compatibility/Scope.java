package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.StreamSegments;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * A scope of a test class's own on the server under test, and the official clients within it.
 *
 * <p>System properties say where the server is and how to get in: {@code nadi.uri}, and, where it asks for them,
 * {@code nadi.truststore} (a PEM file), {@code nadi.username} and {@code nadi.password}.
 */
final class Scope implements AutoCloseable {
    static final UTF8StringSerializer TEXT = new UTF8StringSerializer();

    final String name;
    final StreamManager streams;
    final EventStreamClientFactory events;
    final BatchClientFactory slices;
    final ReaderGroupManager groups;
    final Controller controller;
    final ScheduledExecutorService executor = Executors.newScheduledThreadPool(16);

    private final Class<?> test;

    Scope(Class<?> test) {
        this.test = test;
        name = test.getSimpleName() + "-" + UUID.randomUUID();
        streams = StreamManager.create(client());
        assertTrue(streams.createScope(name));
        events = EventStreamClientFactory.withScope(name, client());
        slices = BatchClientFactory.withScope(name, client());
        groups = ReaderGroupManager.withScope(name, client());
        controller = new ControllerImpl(ControllerImplConfig.builder().clientConfig(client()).build(), executor);
    }

    ClientConfig client() {
        return client(System.getProperty("nadi.username"), System.getProperty("nadi.password"));
    }

    /** A client of the same server for somebody else; nobody if there is no user. */
    ClientConfig client(String user, String password) {
        ClientConfig.ClientConfigBuilder config = ClientConfig.builder().controllerURI(URI.create(uri()));
        if (System.getProperty("nadi.truststore") != null) {
            config.trustStore(property("nadi.truststore"));
        }
        if (user != null) {
            config.credentials(new DefaultCredentials(password, user));
        }
        return config.build();
    }

    /** The server may give each test class an address of its own, to tell whom it serves. */
    private String uri() {
        String own = System.getProperty("nadi.uri." + test.getSimpleName());
        return own != null ? own : property("nadi.uri");
    }

    private static String property(String name) {
        String value = System.getProperty(name);
        if (value == null) {
            throw new IllegalStateException("these tests need a server: say which by -D" + name + "=...");
        }
        return value;
    }

    Stream create(String stream, int segments) {
        assertTrue(streams.createStream(name, stream, fixed(segments)));
        return Stream.of(name, stream);
    }

    static StreamConfiguration fixed(int segments) {
        return StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build();
    }

    EventStreamWriter<String> writer(String stream) {
        return events.createEventWriter(stream, TEXT, EventWriterConfig.builder().build());
    }

    /** Write `events` and return when all of them are durable. */
    void write(String stream, List<Event> events) {
        try (EventStreamWriter<String> writer = writer(stream)) {
            events.forEach(event -> writer.writeEvent(event.key(), event.toString()));
            writer.flush();
        }
    }

    StreamInfo info(String stream) {
        return streams.fetchStreamInfo(name, stream).join();
    }

    StreamCut head(String stream) {
        return info(stream).getHeadStreamCut();
    }

    StreamCut tail(String stream) {
        return info(stream).getTailStreamCut();
    }

    /** The segments between two cuts, in the order in which they were created. */
    List<SegmentRange> segments(String stream, StreamCut from, StreamCut to) {
        List<SegmentRange> found = new ArrayList<>();
        slices.getSegments(Stream.of(name, stream), from, to).getIterator().forEachRemaining(found::add);
        found.sort(Comparator.comparingLong(SegmentRange::getSegmentId));
        return found;
    }

    /** The events between two cuts; each segment's come after those of all that were created before it. */
    List<String> read(String stream, StreamCut from, StreamCut to) {
        List<String> events = new ArrayList<>();
        for (SegmentRange segment : segments(stream, from, to)) {
            try (SegmentIterator<String> iterator = slices.readSegment(segment, TEXT)) {
                iterator.forEachRemaining(events::add);
            }
        }
        return events;
    }

    /** All events up to the present tail. */
    List<String> read(String stream) {
        return read(stream, StreamCut.UNBOUNDED, tail(stream));
    }

    /** Replace all segments by `count` equal ones. */
    void scale(Stream stream, int count) throws Exception {
        StreamSegments now = controller.getCurrentSegments(name, stream.getStreamName()).get();
        List<Long> sealed = now.getSegments().stream().map(segment -> segment.getSegmentId()).toList();
        Map<Double, Double> ranges = new java.util.TreeMap<>();
        for (int i = 0; i < count; i++) {
            ranges.put((double) i / count, (double) (i + 1) / count);
        }
        assertTrue(controller.scaleStream(stream, sealed, ranges, executor).getFuture().get(60, TimeUnit.SECONDS));
    }

    static <T> List<T> list(Iterator<T> items) {
        List<T> list = new ArrayList<>();
        items.forEachRemaining(list::add);
        return list;
    }

    @Override
    public void close() throws Exception {
        groups.close();
        slices.close();
        events.close();
        streams.close();
        controller.close();
        executor.shutdownNow();
    }
}
