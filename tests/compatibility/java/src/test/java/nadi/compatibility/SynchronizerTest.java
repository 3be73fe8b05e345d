package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.JavaSerializer;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** State that several clients share: conditional appends to one segment, and its mark. */
class SynchronizerTest {
    private static final SynchronizerConfig CONFIG = SynchronizerConfig.builder().build();
    private static Scope scope;
    private static SynchronizerClientFactory clients;

    @BeforeAll
    static void open() {
        scope = new Scope(SynchronizerTest.class);
        clients = SynchronizerClientFactory.withScope(scope.name, scope.client());
    }

    @AfterAll
    static void close() throws Exception {
        clients.close();
        scope.close();
    }

    /** Counters by name. */
    record Counters(String stream, Revision at, TreeMap<String, Integer> values) implements Revisioned {
        @Override
        public String getScopedStreamName() {
            return stream;
        }

        @Override
        public Revision getRevision() {
            return at;
        }
    }

    record Begin(TreeMap<String, Integer> values) implements InitialUpdate<Counters>, Serializable {
        @Override
        public Counters create(String stream, Revision revision) {
            return new Counters(stream, revision, values);
        }
    }

    record Add(String counter) implements Update<Counters>, Serializable {
        @Override
        public Counters applyTo(Counters old, Revision revision) {
            TreeMap<String, Integer> values = new TreeMap<>(old.values());
            values.merge(counter, 1, Integer::sum);
            return new Counters(old.stream(), revision, values);
        }
    }

    private static StateSynchronizer<Counters> synchronizer(SynchronizerClientFactory factory, String stream) {
        return factory.createStateSynchronizer(
                stream, new JavaSerializer<Add>(), new JavaSerializer<Begin>(), CONFIG);
    }

    @Test
    void twoClientsAgreeOnWhatTheyCounted() throws Exception {
        scope.create("counters", 1);
        try (SynchronizerClientFactory other = SynchronizerClientFactory.withScope(scope.name, scope.client());
                StateSynchronizer<Counters> one = synchronizer(clients, "counters");
                StateSynchronizer<Counters> two = synchronizer(other, "counters")) {
            one.initialize(new Begin(new TreeMap<>()));
            two.initialize(new Begin(new TreeMap<>(Map.of("wrong", 1)))); // late: the first one counts
            // Each adds only while the sum is under 60: no lost update and none too many.
            CompletableFuture<Void> left = CompletableFuture.runAsync(() -> countTo(one, 60, "left"), scope.executor);
            CompletableFuture<Void> right = CompletableFuture.runAsync(() -> countTo(two, 60, "right"), scope.executor);
            left.get();
            right.get();
            one.fetchUpdates();
            two.fetchUpdates();
            assertEquals(one.getState(), two.getState());
            assertEquals(60, sum(one.getState()));
        }
    }

    private static void countTo(StateSynchronizer<Counters> synchronizer, int limit, String counter) {
        boolean more = true;
        while (more) {
            more = synchronizer.updateState((state, updates) -> {
                if (sum(state) >= limit) {
                    return false;
                }
                updates.add(new Add(counter));
                return true;
            });
        }
    }

    private static int sum(Counters state) {
        return state.values().values().stream().mapToInt(Integer::intValue).sum();
    }

    @Test
    void compactionKeepsTheStateAndDropsItsHistory() {
        scope.create("compacted", 1);
        try (StateSynchronizer<Counters> one = synchronizer(clients, "compacted");
                StateSynchronizer<Counters> two = synchronizer(clients, "compacted")) {
            one.initialize(new Begin(new TreeMap<>()));
            two.fetchUpdates(); // so that it stands before what the compaction drops
            Revision begun = two.getState().getRevision();
            for (int i = 0; i < 20; i++) {
                one.updateStateUnconditionally(new Add("counter"));
            }
            one.fetchUpdates();
            assertTrue(one.bytesWrittenSinceCompaction() > 0);
            one.compact(state -> new Begin(new TreeMap<>(state.values())));
            // What is before a compaction is dropped by the next one, for others may still read it.
            one.compact(state -> new Begin(new TreeMap<>(state.values())));
            one.updateStateUnconditionally(List.of(new Add("counter"), new Add("another")));
            one.fetchUpdates();
            two.fetchUpdates();
            Map<String, Integer> expected = Map.of("counter", 21, "another", 1);
            assertEquals(expected, one.getState().values());
            assertEquals(expected, two.getState().values());
            try (RevisionedStreamClient<String> raw =
                    clients.createRevisionedStreamClient("compacted", Scope.TEXT, CONFIG)) {
                assertTrue(raw.fetchOldestRevision().compareTo(begun) > 0, "the history is truncated");
            }
            try (StateSynchronizer<Counters> late = synchronizer(clients, "compacted")) {
                late.fetchUpdates();
                assertEquals(expected, late.getState().values());
            }
        }
    }

    @Test
    void aRevisionIsWrittenOnceAndReadInOrder() throws Exception {
        scope.create("revisions", 1);
        try (RevisionedStreamClient<String> one = clients.createRevisionedStreamClient("revisions", Scope.TEXT, CONFIG);
                RevisionedStreamClient<String> two =
                        clients.createRevisionedStreamClient("revisions", Scope.TEXT, CONFIG)) {
            Revision start = one.fetchLatestRevision();
            Revision first = one.writeConditionally(start, "first");
            assertNotNull(first);
            assertNull(two.writeConditionally(start, "lost"), "somebody was faster");
            Revision second = two.writeConditionally(first, "second");
            one.writeUnconditionally("third");
            List<String> found = Scope.list(two.readFrom(start)).stream().map(Map.Entry::getValue).toList();
            assertEquals(List.of("first", "second", "third"), found);
            List<String> range = Scope.list(two.readRange(first, second)).stream().map(Map.Entry::getValue).toList();
            assertEquals(List.of("second"), range);
            assertNull(one.getMark());
            assertTrue(one.compareAndSetMark(null, first));
            assertFalse(two.compareAndSetMark(null, second));
            assertTrue(two.compareAndSetMark(first, second));
            assertEquals(second, one.getMark());
            one.truncateToRevision(second);
            assertEquals(second, two.fetchOldestRevision());
            assertThrows(TruncatedDataException.class, () -> Scope.list(two.readFrom(start)));
            found = Scope.list(two.readFrom(second)).stream().map(Map.Entry::getValue).toList();
            assertEquals(List.of("third"), found);
        }
    }

    @Test
    void manyRevisionsAreReadBack() {
        scope.create("many", 1);
        List<String> expected = IntStream.range(0, 500).mapToObj(i -> "revision " + i).toList();
        try (RevisionedStreamClient<String> client = clients.createRevisionedStreamClient("many", Scope.TEXT, CONFIG)) {
            expected.forEach(client::writeUnconditionally);
            List<String> found = Scope.list(client.readFrom(client.fetchOldestRevision())).stream()
                    .map(Map.Entry::getValue)
                    .toList();
            assertEquals(expected, found);
        }
    }
}
