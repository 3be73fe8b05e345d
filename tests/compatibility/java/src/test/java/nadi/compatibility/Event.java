package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.TreeMap;
import java.util.stream.IntStream;

/** An event that knows its place: the number-th with its routing key. */
record Event(String key, int number) {
    /** `count` events over `keys` routing keys, in turn; the numbers of each key begin at `first` and have no gap. */
    static List<Event> numbered(int keys, int first, int count) {
        return IntStream.range(0, count).mapToObj(i -> new Event("key" + i % keys, first + i / keys)).toList();
    }

    static List<String> texts(List<Event> events) {
        return events.stream().map(Event::toString).toList();
    }

    static Event of(String text) {
        String[] parts = text.split("#");
        return new Event(parts[0], Integer.parseInt(parts[1]));
    }

    /** Each event is there once, and those with the same routing key are in the order of their numbers. */
    static void assertSame(List<Event> expected, Collection<String> found) {
        assertEquals(byKey(expected), byKey(found.stream().map(Event::of).toList()));
    }

    private static TreeMap<String, List<Integer>> byKey(Collection<Event> events) {
        TreeMap<String, List<Integer>> numbers = new TreeMap<>();
        events.forEach(event -> numbers.computeIfAbsent(event.key(), key -> new ArrayList<>()).add(event.number()));
        return numbers;
    }

    @Override
    public String toString() {
        return key + "#" + number;
    }
}
