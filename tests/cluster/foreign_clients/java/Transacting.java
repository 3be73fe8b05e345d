import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeoutException;

/**
 * Transactions one after the other: some committed, some aborted.
 *
 * <p>A commit without an answer is tried again, as a program would that has to know. {@code uncertain} has those whose
 * end isn't known all the same: they must be whole or absent. One that failed before its commit must be absent.
 */
final class Transacting extends Worker {
    private static final int KEYS = 3;
    private static final long LEASE_MS = 90_000;
    private static final long PATIENCE_MS = 120_000;
    private static final int LOOKED_AT = 50; // at the end

    final int number;
    final Map<Integer, Map<String, Integer>> committed = new TreeMap<>();
    final Map<Integer, Map<String, Integer>> uncertain = new TreeMap<>();
    int aborted;
    private final Deque<Transaction<String>> last = new ArrayDeque<>();
    private final TransactionalEventStreamWriter<String> writer;
    private final long pauseMs;
    private int count;
    private volatile int committedCount;

    Transacting(Client client, int number, long pauseMs) {
        super("transacting");
        this.number = number;
        this.pauseMs = pauseMs;
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(LEASE_MS).build();
        writer =
                client.events.createTransactionalEventWriter(
                        "writer-" + number, client.stream.getStreamName(), Client.TEXT, config);
    }

    @Override
    void step() throws Exception {
        boolean commits = random.nextDouble() < 0.7;
        int txn = ++count;
        Transaction<String> transaction;
        Map<String, Integer> events = new TreeMap<>();
        try {
            transaction = writer.beginTxn();
            int size = 1 + random.nextInt(14);
            for (int index = 0; index < size; index++) {
                String key = "t" + number + "-" + random.nextInt(KEYS);
                String text = key + ":" + txn + ":" + index + ":" + (commits ? "commit" : "abort") + ":";
                transaction.writeEvent(key, padded(text, 150));
                events.merge(key, 1, Integer::sum);
            }
            transaction.flush();
            if (!commits) {
                transaction.abort();
                aborted++;
                return;
            }
        } catch (TxnFailedException | RuntimeException error) {
            System.err.println("transaction " + txn + " failed before its end: " + error);
            Thread.sleep(pauseMs);
            return;
        }
        uncertain.put(txn, events);
        if (isCommitted(transaction, txn)) {
            committed.put(txn, uncertain.remove(txn));
            committedCount = committed.size();
            last.add(transaction);
            if (last.size() > LOOKED_AT) {
                last.remove();
            }
        }
        Thread.sleep(pauseMs);
    }

    private boolean isCommitted(Transaction<String> transaction, int txn) throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < deadline) {
            try {
                transaction.commit();
                return true;
            } catch (TxnFailedException error) {
                System.err.println("transaction " + txn + " failed at its commit: " + error);
                return false;
            } catch (RuntimeException error) {
                System.err.println("the commit of transaction " + txn + " has no answer: " + error);
                Thread.sleep(100);
            }
        }
        return false;
    }

    @Override
    void settle() throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        for (Transaction<String> transaction : last) {
            while (transaction.checkStatus() != Transaction.Status.COMMITTED) {
                if (System.currentTimeMillis() > deadline) {
                    throw new TimeoutException(
                            transaction.getTxnId() + " is " + transaction.checkStatus() + " after its commit");
                }
                Thread.sleep(50);
            }
        }
    }

    int committedCount() {
        return committedCount;
    }
}
