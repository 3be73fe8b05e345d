package nadi.compatibility;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;

/**
 * A reader of a group that reads in a thread of its own until it is told to stop.
 *
 * <p>What it reads it adds to `found` before it asks for more. So several may share one list: a segment changes
 * hands only when its reader asks for more, and the list has the events of a key in their order.
 */
final class Reading implements AutoCloseable {
    private static final long PAUSE_MS = 100;

    final String id;
    final List<String> found;
    /** How many events it had read itself when a checkpoint passed, by the checkpoint's name. */
    final Map<String, Integer> checkpoints = new ConcurrentHashMap<>();
    final List<String> own = Collections.synchronizedList(new ArrayList<>());
    volatile Position position;
    volatile boolean completed;
    volatile boolean reset;
    private volatile boolean stopping;
    private volatile RuntimeException failure;
    private final EventStreamReader<String> reader;
    private final Thread thread;

    Reading(Scope scope, String group, String id, List<String> found) {
        this.id = id;
        this.found = found;
        reader = scope.events.createReader(
                id, group, Scope.TEXT, ReaderConfig.builder().initialAllocationDelay(0).build());
        thread = new Thread(this::run, "reading " + id);
        thread.start();
    }

    static List<String> shared() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    private void run() {
        try {
            while (!stopping && !completed) {
                EventRead<String> read = reader.readNextEvent(PAUSE_MS);
                if (read.isCheckpoint()) {
                    checkpoints.put(read.getCheckpointName(), own.size());
                } else if (read.getEvent() != null) {
                    own.add(read.getEvent());
                    found.add(read.getEvent());
                }
                position = read.getPosition();
                completed = read.isReadCompleted();
            }
        } catch (ReinitializationRequiredException expected) {
            reset = true; // somebody reset the group: the reader is of no use any more
        } catch (RuntimeException error) {
            failure = error;
        }
    }

    /** Wait until `count` events are in the list that readers may share. */
    void awaitFound(int count) throws InterruptedException {
        await(() -> found.size() >= count);
    }

    /** Wait for a condition for as long as the reader is well; the test's own time limit ends a wait in vain. */
    void await(BooleanSupplier condition) throws InterruptedException {
        while (!condition.getAsBoolean()) {
            if (failure != null) {
                throw failure;
            }
            Thread.sleep(20);
        }
    }

    /** Stop reading without a word to the group, as a process that dies. */
    void vanish() throws InterruptedException {
        stopping = true;
        thread.join();
    }

    /** Leave the group after the last event that was read. */
    @Override
    public void close() throws InterruptedException {
        vanish();
        reader.close();
        if (failure != null) {
            throw failure;
        }
    }
}
