package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.Transaction.Status;
import io.pravega.client.stream.TransactionInfo;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.shared.NameUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Transactions: all or nothing, from any process that knows the id, before and after the stream was scaled. */
class TransactionsTest {
    private static final EventWriterConfig CONFIG =
            EventWriterConfig.builder().transactionTimeoutTime(30_000).build();
    private static Scope scope;

    @BeforeAll
    static void open() {
        scope = new Scope(TransactionsTest.class);
    }

    @AfterAll
    static void close() throws Exception {
        scope.close();
    }

    private static TransactionalEventStreamWriter<String> writer(String stream) {
        return scope.events.createTransactionalEventWriter("writer", stream, Scope.TEXT, CONFIG);
    }

    /** A writer whose transactions have the shortest lease that the client allows. It pings them while it is open. */
    private static TransactionalEventStreamWriter<String> briefWriter(String stream) {
        EventWriterConfig brief = EventWriterConfig.builder().transactionTimeoutTime(10_000).build();
        return scope.events.createTransactionalEventWriter("writer", stream, Scope.TEXT, brief);
    }

    private static void write(Transaction<String> transaction, List<Event> events) throws TxnFailedException {
        for (Event event : events) {
            transaction.writeEvent(event.key(), event.toString());
        }
    }

    /** Wait until the transaction has that status; it is the server's work that is awaited, hence the polling. */
    private static void await(Transaction<String> transaction, Status status) throws InterruptedException {
        while (transaction.checkStatus() != status) {
            Thread.sleep(20);
        }
    }

    @Test
    void aCommitShowsAllEventsAndNothingBefore() throws Exception {
        scope.create("committed", 3);
        scope.write("committed", Event.numbered(6, 0, 60));
        try (TransactionalEventStreamWriter<String> writer = writer("committed")) {
            Transaction<String> transaction = writer.beginTxn();
            assertEquals(Status.OPEN, transaction.checkStatus());
            write(transaction, Event.numbered(6, 10, 120));
            transaction.flush();
            Event.assertSame(Event.numbered(6, 0, 60), scope.read("committed"));
            transaction.commit();
            await(transaction, Status.COMMITTED);
            Event.assertSame(Event.numbered(6, 0, 180), scope.read("committed"));
            assertThrows(TxnFailedException.class, () -> transaction.writeEvent("key0", "key0#99"));
        }
    }

    @Test
    void anAbortLeavesNothing() throws Exception {
        scope.create("aborted", 2);
        try (TransactionalEventStreamWriter<String> writer = writer("aborted")) {
            Transaction<String> transaction = writer.beginTxn();
            write(transaction, Event.numbered(4, 0, 40));
            transaction.flush();
            transaction.abort();
            await(transaction, Status.ABORTED);
            assertEquals(List.of(), scope.read("aborted"));
            assertThrows(TxnFailedException.class, transaction::commit);
        }
    }

    @Test
    void transactionsOfOneWriterDoNotMix() throws Exception {
        scope.create("several", 2);
        try (TransactionalEventStreamWriter<String> writer = writer("several")) {
            List<Transaction<String>> all = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                all.add(writer.beginTxn());
            }
            for (int number = 0; number < 20; number++) {
                for (int i = 0; i < 4; i++) {
                    all.get(i).writeEvent("key" + i, new Event("key" + i, number).toString());
                }
            }
            all.get(3).commit();
            all.get(1).abort();
            all.get(0).commit();
            all.get(2).commit();
            await(all.get(0), Status.COMMITTED);
            await(all.get(2), Status.COMMITTED);
            await(all.get(3), Status.COMMITTED);
        }
        List<Event> expected = Event.numbered(4, 0, 80).stream().filter(event -> !event.key().equals("key1")).toList();
        Event.assertSame(expected, scope.read("several"));
    }

    @Test
    void anotherProcessTakesATransactionUpByItsId() throws Exception {
        scope.create("shared", 2);
        try (EventStreamClientFactory other = EventStreamClientFactory.withScope(scope.name, scope.client());
                TransactionalEventStreamWriter<String> first = writer("shared");
                TransactionalEventStreamWriter<String> second =
                        other.createTransactionalEventWriter("second", "shared", Scope.TEXT, CONFIG)) {
            Transaction<String> begun = first.beginTxn();
            write(begun, Event.numbered(3, 0, 30));
            begun.flush();
            Transaction<String> taken = second.getTxn(begun.getTxnId());
            assertEquals(Status.OPEN, taken.checkStatus());
            write(taken, Event.numbered(3, 10, 30));
            taken.commit();
            await(begun, Status.COMMITTED);
            Event.assertSame(Event.numbered(3, 0, 60), scope.read("shared"));
            Transaction<String> late = second.getTxn(begun.getTxnId());
            assertThrows(TxnFailedException.class, () -> late.writeEvent("key0", "key0#99"));
        }
    }

    @Test
    void aTransactionThatOutlivesAScaleIsTakenUpAndCommitted() throws Exception {
        Stream stream = scope.create("rolled", 2);
        scope.write("rolled", Event.numbered(5, 0, 50));
        try (TransactionalEventStreamWriter<String> first = writer("rolled");
                TransactionalEventStreamWriter<String> second = writer("rolled")) {
            Transaction<String> begun = first.beginTxn();
            write(begun, Event.numbered(5, 20, 50));
            begun.flush();
            scope.scale(stream, 3);
            scope.write("rolled", Event.numbered(5, 10, 50));
            Transaction<String> taken = second.getTxn(begun.getTxnId());
            write(taken, Event.numbered(5, 30, 50));
            taken.commit();
            await(begun, Status.COMMITTED);
        }
        // The transaction's events come after those written before its commit, and before what is written now.
        scope.write("rolled", Event.numbered(5, 40, 50));
        Event.assertSame(Event.numbered(5, 0, 250), scope.read("rolled"));
    }

    @Test
    void aTransactionBegunAfterARollIsTakenUpToo() throws Exception {
        Stream stream = scope.create("epochs", 2);
        try (TransactionalEventStreamWriter<String> first = writer("epochs");
                TransactionalEventStreamWriter<String> second = writer("epochs")) {
            Transaction<String> old = first.beginTxn();
            write(old, Event.numbered(3, 0, 30));
            scope.scale(stream, 3);
            old.commit();
            await(old, Status.COMMITTED);
            // The stream is two epochs further now, whose segments repeat those of the epochs before.
            Transaction<String> begun = first.beginTxn();
            write(begun, Event.numbered(3, 10, 30));
            begun.flush();
            Transaction<String> taken = second.getTxn(begun.getTxnId());
            write(taken, Event.numbered(3, 20, 30));
            taken.commit();
            await(begun, Status.COMMITTED);
            Event.assertSame(Event.numbered(3, 0, 90), scope.read("epochs"));
            // Pravega's id begins with the epoch whose segments the transaction writes to.
            int epoch = NameUtils.getEpoch(begun.getTxnId());
            var segments = scope.controller.getEpochSegments(scope.name, "epochs", epoch).get().getSegments();
            assertEquals(3, segments.size());
        }
    }

    @Test
    void aTransactionThatNobodyPingsIsAborted() throws Exception {
        scope.create("forgotten", 1);
        Transaction<String> forgotten;
        try (TransactionalEventStreamWriter<String> writer = briefWriter("forgotten")) {
            forgotten = writer.beginTxn();
            write(forgotten, Event.numbered(1, 0, 5));
            forgotten.flush();
        }
        await(forgotten, Status.ABORTED);
        assertThrows(TxnFailedException.class, forgotten::commit);
        assertEquals(List.of(), scope.read("forgotten"));
    }

    @Test
    void pingsKeepATransactionOpen() throws Exception {
        scope.create("pinged", 1);
        try (TransactionalEventStreamWriter<String> writer = briefWriter("pinged")) {
            Transaction<String> kept = writer.beginTxn();
            write(kept, Event.numbered(1, 0, 5));
            Thread.sleep(13_000); // a lease, and what a server may grant beyond it
            write(kept, Event.numbered(1, 5, 5));
            kept.commit();
            await(kept, Status.COMMITTED);
        }
        Event.assertSame(Event.numbered(1, 0, 10), scope.read("pinged"));
    }

    @Test
    void completedTransactionsAreListed() throws Exception {
        Stream stream = scope.create("completed", 1);
        assertEquals(List.of(), scope.streams.listCompletedTransactions(stream));
        try (TransactionalEventStreamWriter<String> writer = writer("completed")) {
            Transaction<String> kept = writer.beginTxn();
            Transaction<String> dropped = writer.beginTxn();
            Transaction<String> open = writer.beginTxn();
            kept.commit();
            dropped.abort();
            await(kept, Status.COMMITTED);
            await(dropped, Status.ABORTED);
            Map<UUID, Status> found = scope.streams.listCompletedTransactions(stream).stream()
                    .collect(Collectors.toMap(TransactionInfo::getTransactionId, TransactionInfo::getTransactionStatus));
            assertEquals(Map.of(kept.getTxnId(), Status.COMMITTED, dropped.getTxnId(), Status.ABORTED), found);
            open.abort();
        }
    }

    @Test
    void sealingAStreamAbortsItsOpenTransactions() throws Exception {
        scope.create("closing", 2);
        scope.write("closing", Event.numbered(2, 0, 10));
        StreamCut tail = scope.tail("closing");
        try (TransactionalEventStreamWriter<String> writer = writer("closing")) {
            Transaction<String> open = writer.beginTxn();
            write(open, Event.numbered(2, 5, 10));
            open.flush();
            assertTrue(scope.streams.sealStream(scope.name, "closing"));
            await(open, Status.ABORTED);
        }
        Event.assertSame(Event.numbered(2, 0, 10), scope.read("closing", StreamCut.UNBOUNDED, tail));
    }
}
