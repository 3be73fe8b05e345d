import java.util.Random;

/** A thread that does {@code step} again and again until {@code finish}. What it throws ends the program. */
abstract class Worker {
    private static final long SETTLED_MS = 180_000;

    final Random random = new Random();
    volatile boolean stopping;
    private final Thread thread;

    Worker(String name) {
        thread = new Thread(this::run, name);
        thread.setDaemon(true);
    }

    abstract void step() throws Exception;

    /** What was begun comes to its end; called once there are no more steps. */
    void settle() throws Exception {}

    void start() {
        thread.start();
    }

    void finish() throws Exception {
        stopping = true;
        thread.join(SETTLED_MS);
        if (thread.isAlive()) {
            StringBuilder where = new StringBuilder(thread.getName() + " hangs");
            for (StackTraceElement each : thread.getStackTrace()) {
                where.append("\n  at ").append(each);
            }
            throw new IllegalStateException(where.toString());
        }
        settle();
    }

    private void run() {
        try {
            while (!stopping) {
                step();
            }
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    /** An event's text: a number under a key, or whatever is before the dots that make it as long. */
    static String padded(String text, int length) {
        return text + ".".repeat(Math.max(0, length - text.length()));
    }
}
