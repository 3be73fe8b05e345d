import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.TruncatedDataException;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * A reader group whose readers read all of the stream, each event once.
 *
 * <p>What they read, without its padding, goes into one file, a line for each event, before they ask for more: a segment
 * changes hands only when its reader asks for more, so the file has the events of a key in their order. If a reader
 * fails, another goes on behind the last event that it gave.
 */
final class Reading extends Worker {
    private static final String GROUP = "verifiers";
    private static final int READERS = 2;
    private static final long WAIT_MS = 200;

    private final Client client;
    private final BufferedWriter read;
    private final Thread[] threads = new Thread[READERS];
    private long events;
    private volatile int lost;

    Reading(Client client, Path file) throws IOException {
        super("reading");
        this.client = client;
        read = Files.newBufferedWriter(file);
        client.groups.createReaderGroup(GROUP, ReaderGroupConfig.builder().stream(client.stream).build());
    }

    @Override
    void start() {
        for (int number = 0; number < READERS; number++) {
            String name = "reader-" + number;
            threads[number] = new Thread(() -> readOn(name), name);
            threads[number].setDaemon(true);
            threads[number].start();
        }
    }

    @Override
    void step() {}

    @Override
    void finish() throws Exception {
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
        flush();
    }

    private void readOn(String name) {
        try {
            for (int generation = 0; !stopping; generation++) {
                readAs(name + "-" + generation);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    /** Until all is over, or the reader fails. */
    private void readAs(String id) throws Exception {
        Position position = null;
        EventStreamReader<String> reader =
                client.events.createReader(id, GROUP, Client.TEXT, ReaderConfig.builder().build());
        try {
            while (!stopping) {
                EventRead<String> found = reader.readNextEvent(WAIT_MS);
                if (found.getEvent() != null) {
                    take(found.getEvent());
                }
                position = found.getPosition();
            }
            reader.close();
        } catch (ReinitializationRequiredException | TruncatedDataException error) {
            throw error; // nobody resets the group, and nothing is truncated
        } catch (RuntimeException error) {
            System.err.println(id + " failed: " + error);
            lost++;
            goOffline(id, position);
        }
    }

    private void goOffline(String id, Position position) throws InterruptedException {
        while (true) {
            try {
                client.groups.getReaderGroup(GROUP).readerOffline(id, position);
                return;
            } catch (RuntimeException error) {
                System.err.println(id + " can't be declared offline: " + error);
                Thread.sleep(500);
            }
        }
    }

    private synchronized void take(String event) throws IOException {
        int end = event.length();
        while (event.charAt(end - 1) == '.') {
            end--;
        }
        read.append(event, 0, end).append('\n');
        events++;
    }

    synchronized void flush() throws IOException {
        read.flush();
    }

    synchronized long events() {
        return events;
    }

    int lost() {
        return lost;
    }
}
