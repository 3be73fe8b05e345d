import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * Writes events under keys of its own, numbered for each key, and counts those that were acknowledged.
 *
 * <p>Of each key one event is under way: the client gives an event up after some tries to reach its segment, and sends
 * the next all the same. If it does, nobody knows what became of those that were under way, so their keys get no more
 * of them: a new writer goes on with new keys.
 */
final class Writing extends Worker {
    private static final int KEYS = 60;
    private static final long ACKNOWLEDGED_S = 150;

    final Map<String, Integer> written = new TreeMap<>();
    final Map<String, Integer> acknowledged = new TreeMap<>();
    private final Client client;
    private final String name;
    private final long pauseMs;
    private final Map<String, CompletableFuture<Void>> pending = new HashMap<>();
    private EventStreamWriter<String> writer;
    private volatile long acknowledgedEvents;
    private volatile int generation;

    Writing(Client client, int number, long pauseMs) {
        super("writing");
        this.client = client;
        this.name = "w" + number;
        this.pauseMs = pauseMs;
        begin();
    }

    private void begin() {
        writer =
                client.events.createEventWriter(
                        client.stream.getStreamName(), Client.TEXT, EventWriterConfig.builder().build());
        for (int key = 0; key < KEYS; key++) {
            written.put(key(key), 0);
            acknowledged.put(key(key), 0);
        }
    }

    private String key(int number) {
        return name + "-" + number + (generation == 0 ? "" : "g" + generation);
    }

    @Override
    void step() throws Exception {
        int count = 1 + random.nextInt(20);
        for (int i = 0; i < count; i++) {
            String key = key(random.nextInt(KEYS));
            if (!pending.containsKey(key)) {
                String event = padded(key + ":" + written.get(key) + ":", 10 + random.nextInt(290));
                pending.put(key, writer.writeEvent(key, event));
                written.merge(key, 1, Integer::sum);
            }
        }
        collect(false);
        Thread.sleep(pauseMs);
    }

    @Override
    void settle() throws Exception {
        writer.flush();
        collect(true);
    }

    private void collect(boolean wait) throws Exception {
        for (String key : List.copyOf(pending.keySet())) {
            CompletableFuture<Void> answer = pending.get(key);
            if (!wait && !answer.isDone()) {
                continue;
            }
            try {
                answer.get(ACKNOWLEDGED_S, TimeUnit.SECONDS);
            } catch (ExecutionException error) {
                System.err.println("the writer has given up " + key + ": " + error.getCause());
                pending.clear();
                generation++;
                begin();
                return;
            }
            pending.remove(key);
            acknowledged.merge(key, 1, Integer::sum);
            acknowledgedEvents++;
        }
    }

    long acknowledgedEvents() {
        return acknowledgedEvents;
    }

    int givenUp() {
        return generation;
    }
}
