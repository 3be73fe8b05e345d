import com.sun.management.OperatingSystemMXBean;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.IntStream;

/**
 * The official client at what {@code bench/spread.py} does: it warms up, says "ready", waits for a line, writes at a
 * steady rate, and prints what came of it as one JSON object.
 *
 * <p>Arguments are the controller's URI, scope, stream; events a second, bytes of one, how many, the first of them that
 * are left out of latencies; how many keys, and how much further on the next event's key is; and "pooled" if segments
 * share connections, "shipped" if the client's settings stay as they are.
 */
final class SpreadWriter {
    private static final long PAUSE_MS = 1;
    private static final long ACKNOWLEDGED_S = 60; // after all are written

    public static void main(String[] arguments) throws Exception {
        int rate = Integer.parseInt(arguments[3]);
        byte[] event = new byte[Integer.parseInt(arguments[4])];
        int count = Integer.parseInt(arguments[5]);
        int warm = Integer.parseInt(arguments[6]);
        String[] keys =
                IntStream.range(0, Integer.parseInt(arguments[7])).mapToObj(key -> "key-" + key).toArray(String[]::new);
        long step = Long.parseLong(arguments[8]);
        EventWriterConfig.EventWriterConfigBuilder settings = EventWriterConfig.builder();
        if (arguments[9].equals("pooled")) {
            settings.enableConnectionPooling(true);
        }
        new Random().nextBytes(event);
        ClientConfig config = ClientConfig.builder().controllerURI(URI.create(arguments[0])).build();
        try (EventStreamClientFactory factory = EventStreamClientFactory.withScope(arguments[1], config);
                EventStreamWriter<ByteBuffer> writer =
                        factory.createEventWriter(arguments[2], new ByteBufferSerializer(), settings.build())) {
            byte[] first = "warm".getBytes(StandardCharsets.UTF_8);
            for (String key : keys) {
                writer.writeEvent(key, ByteBuffer.wrap(first));
            }
            writer.flush();
            System.out.println("ready");
            if (System.in.read() < 0) {
                throw new IllegalStateException("whoever started this has ended");
            }
            long[] waits = new long[count];
            CountDownLatch acknowledged = new CountDownLatch(count);
            AtomicReference<Throwable> failure = new AtomicReference<>();
            long cpuBefore = cpuNanos();
            long began = System.nanoTime();
            int written = 0;
            while (written < count) {
                long due = Math.min((System.nanoTime() - began) * rate / 1_000_000_000L, count);
                for (; written < due; written++) {
                    int number = written;
                    String key = keys[(int) (number * step % keys.length)];
                    long sent = System.nanoTime();
                    writer.writeEvent(key, ByteBuffer.wrap(event))
                            .whenComplete(
                                    (nothing, error) -> {
                                        waits[number] = System.nanoTime() - sent;
                                        failure.compareAndSet(null, error);
                                        acknowledged.countDown();
                                    });
                }
                Thread.sleep(PAUSE_MS);
            }
            writer.flush();
            if (!acknowledged.await(ACKNOWLEDGED_S, TimeUnit.SECONDS)) {
                throw new TimeoutException(acknowledged.getCount() + " events were never acknowledged");
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpuMicros = (cpuNanos() - cpuBefore) / 1e3;
            if (failure.get() != null) {
                throw new CompletionException("not all events were acknowledged", failure.get());
            }
            long[] late = Arrays.copyOfRange(waits, warm, count);
            Arrays.sort(late);
            System.out.printf(
                    Locale.ROOT,
                    "{\"p50_ms\": %.6f, \"p95_ms\": %.6f, \"p99_ms\": %.6f, \"rate\": %.3f, \"cpu_us\": %.4f}%n",
                    percentileMs(late, 50),
                    percentileMs(late, 95),
                    percentileMs(late, 99),
                    count / seconds,
                    cpuMicros / count);
        }
    }

    /** Of this whole process: the client's threads, the garbage collector and the compiler, too. */
    private static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** As {@code percentile} in {@code bench/events.py}. */
    private static double percentileMs(long[] sorted, int part) {
        return sorted[(int) Math.min((long) sorted.length * part / 100, sorted.length - 1)] / 1e6;
    }
}
