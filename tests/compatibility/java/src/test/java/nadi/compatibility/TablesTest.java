package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.BadKeyVersionException;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.NoSuchKeyException;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.Exceptions;
import io.pravega.common.util.AsyncIterator;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Key-value tables. A key has a primary part, which chooses the partition, and a secondary one. */
class TablesTest {
    private static final int PRIMARY = 4;
    private static final int SECONDARY = 3;
    private static Scope scope;
    private static KeyValueTableManager manager;
    private static KeyValueTableFactory tables;

    @BeforeAll
    static void open() {
        scope = new Scope(TablesTest.class);
        manager = KeyValueTableManager.create(scope.client());
        tables = KeyValueTableFactory.withScope(scope.name, scope.client());
    }

    @AfterAll
    static void close() throws Exception {
        tables.close();
        manager.close();
        scope.close();
    }

    private static KeyValueTableConfiguration config(int partitions) {
        return KeyValueTableConfiguration.builder()
                .partitionCount(partitions)
                .primaryKeyLength(PRIMARY)
                .secondaryKeyLength(SECONDARY)
                .build();
    }

    private static KeyValueTable create(String name, int partitions) {
        assertTrue(manager.createKeyValueTable(scope.name, name, config(partitions)));
        return table(name);
    }

    private static KeyValueTable table(String name) {
        return tables.forKeyValueTable(name, KeyValueTableClientConfiguration.builder().build());
    }

    private static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(ByteBuffer bytes) {
        return StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
    }

    private static TableKey key(String primary, String secondary) {
        return new TableKey(bytes(primary), bytes(secondary));
    }

    private static String value(KeyValueTable table, TableKey key) {
        TableEntry entry = table.get(key).join();
        return entry == null ? null : text(entry.getValue());
    }

    /** The failure of a modification that must not be made. */
    private static Throwable refused(KeyValueTable table, TableModification modification) {
        CompletableFuture<Version> update = table.update(modification);
        return Exceptions.unwrap(assertThrows(CompletionException.class, update::join));
    }

    @Test
    void aTableIsCreatedOnceListedAndDeletedOnce() {
        assertTrue(manager.createKeyValueTable(scope.name, "managed", config(2)));
        assertFalse(manager.createKeyValueTable(scope.name, "managed", config(3)));
        assertTrue(listed().contains("managed"));
        assertFalse(
                Scope.list(scope.streams.listStreams(scope.name)).stream()
                        .anyMatch(stream -> stream.getStreamName().equals("managed")),
                "a table is no stream");
        assertTrue(manager.deleteKeyValueTable(scope.name, "managed"));
        assertFalse(manager.deleteKeyValueTable(scope.name, "managed"));
        assertFalse(listed().contains("managed"));
        assertThrows(
                IllegalArgumentException.class,
                () -> manager.createKeyValueTable("no-such-scope", "managed", config(1)));
    }

    private static Set<String> listed() {
        return Scope.list(manager.listKeyValueTables(scope.name)).stream()
                .map(info -> info.getKeyValueTableName())
                .collect(Collectors.toSet());
    }

    @Test
    void manyTablesAreListedOverPages() {
        Set<String> names = IntStream.range(0, 23).mapToObj(i -> "page" + i).collect(Collectors.toSet());
        names.forEach(name -> assertTrue(manager.createKeyValueTable(scope.name, name, config(1))));
        assertTrue(listed().containsAll(names));
    }

    @Test
    void aKeyIsInsertedOnceChangedAndRemoved() {
        try (KeyValueTable table = create("single", 2)) {
            TableKey key = key("berl", "001");
            assertNull(table.get(key).join());
            assertFalse(table.exists(key).join());
            Version first = table.update(new Insert(key, bytes("one"))).join();
            assertEquals("one", value(table, key));
            assertTrue(table.exists(key).join());
            assertEquals(first, table.get(key).join().getVersion());
            assertInstanceOf(ConditionalTableUpdateException.class, refused(table, new Insert(key, bytes("again"))));
            Version second = table.update(new Put(key, bytes("two"))).join();
            assertEquals("two", value(table, key));
            table.update(new Remove(key)).join();
            assertNull(value(table, key));
            Version third = table.update(new Insert(key, bytes("three"))).join();
            assertEquals(3, new HashSet<>(List.of(first, second, third)).size(), "no version comes twice");
            assertEquals("three", value(table, key));
        }
    }

    @Test
    void aChangeMayDependOnTheVersion() {
        try (KeyValueTable table = create("conditional", 1)) {
            TableKey key = key("berl", "001");
            assertInstanceOf(
                    NoSuchKeyException.class, refused(table, new Put(key, bytes("x"), Version.fromString(versionOfOther(table)))));
            Version first = table.update(new Insert(key, bytes("one"))).join();
            Version second = table.update(new Put(key, bytes("two"), first)).join();
            assertInstanceOf(BadKeyVersionException.class, refused(table, new Put(key, bytes("late"), first)));
            assertInstanceOf(BadKeyVersionException.class, refused(table, new Remove(key, first)));
            assertEquals("two", value(table, key));
            table.update(new Remove(key, second)).join();
            assertNull(value(table, key));
        }
    }

    private static String versionOfOther(KeyValueTable table) {
        return table.update(new Insert(key("else", "000"), bytes("other"))).join().toString();
    }

    @Test
    void changesUnderOnePrimaryKeyAreAllOrNothing() {
        try (KeyValueTable table = create("atomic", 3)) {
            List<Version> versions = table.update(List.<TableModification>of(
                            new Insert(key("berl", "001"), bytes("one")), new Insert(key("berl", "002"), bytes("two"))))
                    .join();
            assertEquals(2, versions.size());
            CompletableFuture<List<Version>> half = table.update(List.<TableModification>of(
                    new Put(key("berl", "001"), bytes("changed")),
                    new Insert(key("berl", "003"), bytes("three")),
                    new Put(key("berl", "002"), bytes("changed"), versions.get(0))));
            assertThrows(CompletionException.class, half::join);
            assertEquals("one", value(table, key("berl", "001")));
            assertEquals("two", value(table, key("berl", "002")));
            assertNull(value(table, key("berl", "003")));
            table.update(List.<TableModification>of(
                            new Put(key("berl", "001"), bytes("changed"), versions.get(0)),
                            new Insert(key("berl", "003"), bytes("three"))))
                    .join();
            assertEquals("changed", value(table, key("berl", "001")));
            assertEquals("three", value(table, key("berl", "003")));
            // A batch has changes or removals, not both; removals are all or nothing as well.
            CompletableFuture<List<Version>> removals = table.update(List.<TableModification>of(
                    new Remove(key("berl", "003")), new Remove(key("berl", "002"), versions.get(0))));
            assertThrows(CompletionException.class, removals::join);
            assertEquals("three", value(table, key("berl", "003")));
            table.update(List.<TableModification>of(
                            new Remove(key("berl", "003")), new Remove(key("berl", "002"), versions.get(1))))
                    .join();
            assertNull(value(table, key("berl", "002")));
            assertNull(value(table, key("berl", "003")));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> table.update(List.<TableModification>of(
                            new Put(key("berl", "001"), bytes("x")), new Put(key("hamb", "001"), bytes("x")))),
                    "one partition at a time");
        }
    }

    @Test
    void manyKeysAreReadInTheOrderAskedFor() {
        try (KeyValueTable table = create("many", 4)) {
            fill(table);
            List<TableKey> keys = List.of(key("p007", "003"), key("none", "000"), key("p000", "000"), key("p011", "009"));
            List<TableEntry> found = table.getAll(keys).join();
            List<String> values = found.stream().map(entry -> entry == null ? "-" : text(entry.getValue())).toList();
            assertEquals(List.of("p007/003", "-", "p000/000", "p011/009"), values);
        }
    }

    /** Twelve primary keys with ten secondary ones each. */
    private static TreeMap<String, String> fill(KeyValueTable table) {
        TreeMap<String, String> expected = new TreeMap<>();
        for (int p = 0; p < 12; p++) {
            String primary = "p%03d".formatted(p);
            List<TableModification> inserts = new ArrayList<>();
            for (int s = 9; s >= 0; s--) {
                String secondary = "%03d".formatted(s);
                inserts.add(new Insert(key(primary, secondary), bytes(primary + "/" + secondary)));
                expected.put(primary + secondary, primary + "/" + secondary);
            }
            table.update(inserts).join();
        }
        return expected;
    }

    private static <T> List<T> all(AsyncIterator<IteratorItem<T>> iterator) {
        List<T> found = new ArrayList<>();
        iterator.forEachRemaining(item -> found.addAll(item.getItems()), Runnable::run).join();
        return found;
    }

    private static List<String> keys(List<TableEntry> entries) {
        return entries.stream()
                .map(entry -> text(entry.getKey().getPrimaryKey()) + text(entry.getKey().getSecondaryKey()))
                .toList();
    }

    @Test
    void aPrimaryKeysEntriesComeInOrder() {
        try (KeyValueTable table = create("ordered", 3)) {
            TreeMap<String, String> expected = fill(table);
            List<TableEntry> one =
                    all(table.iterator().maxIterationSize(4).forPrimaryKey(bytes("p004")).entries());
            assertEquals(List.copyOf(expected.subMap("p004000", true, "p004009", true).keySet()), keys(one));
            assertEquals("p004/007", text(one.get(7).getValue()));
            List<TableEntry> range = all(table.iterator()
                    .maxIterationSize(2)
                    .forPrimaryKey(bytes("p004"), bytes("003"), bytes("007"))
                    .entries());
            assertEquals(List.copyOf(expected.subMap("p004003", true, "p004007", true).keySet()), keys(range));
            List<TableEntry> prefix = all(table.iterator()
                    .maxIterationSize(2)
                    .forPrimaryKey(bytes("p004"), bytes("00"))
                    .entries());
            assertEquals(List.copyOf(expected.subMap("p004000", true, "p004009", true).keySet()), keys(prefix));
        }
    }

    @Test
    void iteratorsGoOverAllPartitions() {
        try (KeyValueTable table = create("iterated", 4)) {
            TreeMap<String, String> expected = fill(table);
            List<TableEntry> all = all(table.iterator().maxIterationSize(7).all().entries());
            assertEquals(expected.size(), all.size());
            assertEquals(expected.keySet(), new TreeSet<>(keys(all)));
            all.forEach(entry -> assertEquals(
                    expected.get(keys(List.of(entry)).get(0)), text(entry.getValue())));
            List<TableKey> only = all(table.iterator().maxIterationSize(7).all().keys());
            assertEquals(
                    expected.keySet(),
                    only.stream()
                            .map(key -> text(key.getPrimaryKey()) + text(key.getSecondaryKey()))
                            .collect(Collectors.toCollection(TreeSet::new)));
            List<TableEntry> range = all(table.iterator().forRange(bytes("p003"), bytes("p005")).entries());
            assertEquals(expected.subMap("p003000", true, "p005009", true).keySet(), new TreeSet<>(keys(range)));
            assertEquals(30, range.size());
            List<TableEntry> prefix = all(table.iterator().forPrefix(bytes("p01")).entries());
            assertEquals(expected.subMap("p010000", true, "p011009", true).keySet(), new TreeSet<>(keys(prefix)));
            assertEquals(20, prefix.size());
        }
    }

    @Test
    void anotherClientSeesWhatOneWrote() {
        TableKey key = key("berl", "001");
        try (KeyValueTable table = create("visible", 2);
                KeyValueTableFactory others = KeyValueTableFactory.withScope(scope.name, scope.client());
                KeyValueTable other = others.forKeyValueTable(
                        "visible", KeyValueTableClientConfiguration.builder().build())) {
            Version version = table.update(new Insert(key, bytes("one"))).join();
            assertEquals("one", value(other, key));
            other.update(new Put(key, bytes("two"), version)).join();
            assertEquals("two", value(table, key));
        }
    }

    @Test
    void aTableWithoutSecondaryKeysAndLargeValues() {
        KeyValueTableConfiguration config =
                KeyValueTableConfiguration.builder().partitionCount(1).primaryKeyLength(16).build();
        assertTrue(manager.createKeyValueTable(scope.name, "plain", config));
        try (KeyValueTable table = table("plain")) {
            String large = "x".repeat(900_000);
            TableKey key = new TableKey(bytes("0123456789abcdef"));
            table.update(new Insert(key, bytes(large))).join();
            assertEquals(large, value(table, key));
            TableKey small = new TableKey(bytes("short"));
            assertThrows(IllegalArgumentException.class, () -> table.update(new Insert(small, bytes("x"))));
        }
    }
}
