import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicReference;

/** The official client at what {@code writer.py} does: arguments are the controller's URI, scope, stream, plan. */
final class PlanWriter {
    private static final int TICKS = 100; // a second

    private record Line(int number, String key, byte[] text) {}

    public static void main(String[] arguments) throws Exception {
        Path plan = Path.of(arguments[3]);
        List<Line> lines = new ArrayList<>();
        int keys = 0;
        for (String line : Files.readAllLines(plan.resolve("lines"))) {
            String[] fields = line.split("\t", 3);
            int number = Integer.parseInt(fields[0]);
            keys = Math.max(keys, number + 1);
            lines.add(new Line(number, fields[1], fields[2].getBytes(StandardCharsets.UTF_8)));
        }
        List<String> rates = Files.readAllLines(plan.resolve("rates"));
        int[] counts = new int[keys];
        AtomicReference<Throwable> failure = new AtomicReference<>();
        ClientConfig config = ClientConfig.builder().controllerURI(URI.create(arguments[0])).build();
        try (EventStreamClientFactory factory = EventStreamClientFactory.withScope(arguments[1], config);
                EventStreamWriter<ByteBuffer> writer =
                        factory.createEventWriter(
                                arguments[2], new ByteBufferSerializer(), EventWriterConfig.builder().build());
                PrintWriter progress = new PrintWriter(Files.newBufferedWriter(plan.resolve("progress")), true)) {
            System.out.println("ready");
            long written = 0;
            long dueBefore = 0;
            long began = System.nanoTime();
            for (int second = 0; second < rates.size(); second++) {
                int rate = Integer.parseInt(rates.get(second));
                for (int tick = 1; tick <= TICKS; tick++) {
                    long wait = began + second * 1_000_000_000L + tick * (1_000_000_000L / TICKS) - System.nanoTime();
                    if (wait > 0) {
                        Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
                    }
                    long due = dueBefore + (long) rate * tick / TICKS;
                    long now = System.nanoTime(); // the monotonic clock that the readers see, too
                    for (; written < due; written++) {
                        Line line = lines.get((int) (written % lines.size()));
                        ByteBuffer event = ByteBuffer.allocate(16 + line.text.length);
                        event.putInt(line.number).putInt(counts[line.number]++).putLong(now).put(line.text).flip();
                        writer.writeEvent(line.key, event)
                                .whenComplete((nothing, error) -> failure.compareAndSet(null, error));
                    }
                }
                dueBefore += rate;
                double late = (System.nanoTime() - began) / 1e9 - second - 1;
                progress.printf(
                        "{\"at_ms\": %d, \"rate\": %d, \"written\": %d, \"late_s\": %.6f}%n",
                        System.currentTimeMillis(), rate, written, late);
            }
            writer.flush();
        }
        if (failure.get() != null) {
            throw new CompletionException("not all events were acknowledged", failure.get());
        }
        StringBuilder text = new StringBuilder();
        for (int count : counts) {
            text.append(count).append('\n');
        }
        Files.writeString(plan.resolve("counts"), text);
    }
}
