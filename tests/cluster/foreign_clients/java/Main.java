import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.CountDownLatch;

/**
 * The official client as one of those that verify a cluster: a writer, transactions, and the readers of a group.
 *
 * <p>Arguments are the controllers' URI, scope, stream, the number that its keys bear, a folder, and the pause in
 * milliseconds between the bunches of events that it writes. What it writes into the folder, and when, is in {@code
 * client.py} of tests/cluster/processes; what its readers read, it writes into the file {@code read} there.
 */
final class Main {
    private static final long LOOK_MS = 50;

    private final Path folder;
    private final Writing writing;
    private final Transacting transacting;
    private final Reading reading;

    private Main(String[] arguments) throws IOException {
        folder = Path.of(arguments[4]);
        int number = Integer.parseInt(arguments[3]);
        long pauseMs = Long.parseLong(arguments[5]);
        Client client = new Client(arguments[0], arguments[1], arguments[2]);
        reading = new Reading(client, folder.resolve("read"));
        writing = new Writing(client, number, pauseMs);
        transacting = new Transacting(client, number, pauseMs);
    }

    public static void main(String[] arguments) throws Exception {
        new Main(arguments).run();
        System.exit(0); // threads of the client that are under way have nothing more to do
    }

    private void run() throws Exception {
        CountDownLatch settle = new CountDownLatch(1);
        CountDownLatch end = new CountDownLatch(1);
        Thread listening = new Thread(() -> listen(settle, end), "listening");
        listening.setDaemon(true);
        listening.start();
        Worker[] workers = {writing, transacting, reading};
        for (Worker worker : workers) {
            worker.start();
        }
        tellUntil(settle);
        writing.finish();
        transacting.finish();
        put("settled", "true");
        tellUntil(end);
        reading.finish();
        put("promised", promised());
    }

    private static void listen(CountDownLatch... told) {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (CountDownLatch one : told) {
                if (lines.readLine() == null) {
                    System.exit(1); // whoever started this has ended
                }
                one.countDown();
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private void tellUntil(CountDownLatch told) throws Exception {
        while (told.getCount() > 0) {
            reading.flush();
            put("progress", progress());
            Thread.sleep(LOOK_MS);
        }
    }

    private String progress() {
        StringJoiner found = new StringJoiner(", ", "{", "}");
        found.add("\"writes\": " + writing.acknowledgedEvents());
        found.add("\"given up\": " + writing.givenUp());
        found.add("\"commits\": " + transacting.committedCount());
        found.add("\"reads\": " + reading.events());
        found.add("\"readers lost\": " + reading.lost());
        return found.toString();
    }

    private String promised() {
        StringJoiner found = new StringJoiner(", ", "{", "}");
        found.add("\"written\": " + Json.of(writing.written));
        found.add("\"acknowledged\": " + Json.of(writing.acknowledged));
        found.add("\"committed\": " + Json.of(Map.of(transacting.number, transacting.committed)));
        found.add("\"uncertain\": " + Json.of(Map.of(transacting.number, transacting.uncertain)));
        found.add("\"aborted\": " + transacting.aborted);
        return found.toString();
    }

    /** Whole, or not at all. */
    private void put(String name, String text) throws IOException {
        Path made = folder.resolve(name + ".new");
        Files.writeString(made, text);
        Files.move(made, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
    }
}
