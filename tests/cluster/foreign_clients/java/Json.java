import java.util.Map;
import java.util.StringJoiner;

/** Numbers, and objects of them. Keys are plain words. */
final class Json {
    private Json() {}

    static String of(Object value) {
        if (!(value instanceof Map<?, ?> map)) {
            return value.toString();
        }
        StringJoiner found = new StringJoiner(", ", "{", "}");
        map.forEach((key, each) -> found.add("\"" + key + "\": " + of(each)));
        return found.toString();
    }
}
