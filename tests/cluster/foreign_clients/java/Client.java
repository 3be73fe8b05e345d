import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.net.URI;

/** The official client, with the settings it is shipped with, and the stream that all is about. */
final class Client {
    static final UTF8StringSerializer TEXT = new UTF8StringSerializer();

    final EventStreamClientFactory events;
    final ReaderGroupManager groups;
    final Stream stream;

    Client(String uri, String scope, String stream) {
        ClientConfig config = ClientConfig.builder().controllerURI(URI.create(uri)).build();
        events = EventStreamClientFactory.withScope(scope, config);
        groups = ReaderGroupManager.withScope(scope, config);
        this.stream = Stream.of(scope, stream);
    }
}
