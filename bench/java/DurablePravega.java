import java.io.File;
import java.net.InetSocketAddress;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.Main;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * ZooKeeper, a bookie that syncs its journal, a segment store and a controller of Pravega in one process.
 *
 * Arguments: the folder, the ports of ZooKeeper and the bookie, and the parent of BookKeeper's nodes in ZooKeeper.
 * Pravega's own settings are in the file that the property pravega.configurationFile names, and system properties.
 */
public class DurablePravega {
    private static final String HOST = "127.0.0.1";

    public static void main(String[] given) throws Exception {
        File folder = new File(given[0]);
        int zooKeeperPort = Integer.parseInt(given[1]);
        File nodes = new File(folder, "zookeeper");
        ServerCnxnFactory.createFactory(new InetSocketAddress(HOST, zooKeeperPort), 100)
                .startup(new ZooKeeperServer(nodes, nodes, 2000));
        makeNodes(HOST + ":" + zooKeeperPort, given[3]);

        ServerConfiguration bookie = new ServerConfiguration();
        bookie.setMetadataServiceUri("zk+hierarchical://" + HOST + ":" + zooKeeperPort + given[3] + "/ledgers");
        bookie.setBookiePort(Integer.parseInt(given[2]));
        bookie.setAdvertisedAddress(HOST);
        bookie.setAllowLoopback(true);
        bookie.setJournalDirName(made(folder, "journal").getPath());
        bookie.setJournalSyncData(true);
        bookie.setLedgerDirNames(new String[] {made(folder, "ledgers").getPath()});
        BookKeeperAdmin.format(bookie, false, true);
        Main.buildBookieServer(new BookieConfiguration(bookie)).start();

        start(() -> io.pravega.segmentstore.server.host.ServiceStarter.main(new String[0]));
        start(() -> io.pravega.controller.server.Main.main(new String[0]));
    }

    private static void makeNodes(String zooKeeper, String path) throws Exception {
        try (ZooKeeper client = new ZooKeeper(zooKeeper, 10_000, event -> {})) {
            for (int end = path.indexOf('/', 1); ; end = path.indexOf('/', end + 1)) {
                String node = end < 0 ? path : path.substring(0, end);
                client.create(node, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                if (end < 0)
                    return;
            }
        }
    }

    private static File made(File parent, String name) {
        File folder = new File(parent, name);
        folder.mkdirs();
        return folder;
    }

    private interface Program {
        void run() throws Exception;
    }

    private static void start(Program program) {
        new Thread(() -> {
            try {
                program.run();
            } catch (Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        }).start();
    }
}
