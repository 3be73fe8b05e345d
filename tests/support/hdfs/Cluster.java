import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Deque;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;

/** A small HDFS, told line by line what is to befall it. Arguments: its folder, and how many data nodes it has. */
public class Cluster {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1_000);
    conf.setInt("dfs.heartbeat.interval", 1);
    conf.setBoolean("dfs.namenode.redundancy.considerLoad", false);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf, new File(arguments[0])).numDataNodes(Integer.parseInt(arguments[1])).build();
    cluster.waitActive();
    System.out.println("ready " + cluster.getNameNodePort());
    Deque<MiniDFSCluster.DataNodeProperties> killed = new ArrayDeque<>();
    BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
    for (String line = told.readLine(); line != null; line = told.readLine()) {
      String[] words = line.split(" ");
      String answer = "done";
      try {
        switch (words[0]) {
          case "stop-name-node" -> cluster.shutdownNameNode(0);
          case "start-name-node" -> cluster.restartNameNode(0, true);
          case "kill-data-node" -> killed.push(cluster.stopDataNode(0));
          case "start-data-nodes" -> {
            while (!killed.isEmpty()) {
              cluster.restartDataNode(killed.pop(), true);
            }
            cluster.waitActive();
          }
          default -> answer = Integer.toString(inside(cluster.getFileSystem(), words));
        }
      } catch (Exception error) {
        answer = "failed " + error.toString().replace('\n', ' ');
      }
      System.out.println(answer);
    }
    cluster.shutdown(true);
  }

  private static int inside(DistributedFileSystem files, String[] words) throws Exception {
    switch (words[0]) {
      case "safe-mode" -> files.setSafeMode(
          words[1].equals("on") ? HdfsConstants.SafeModeAction.SAFEMODE_ENTER : HdfsConstants.SafeModeAction.SAFEMODE_LEAVE);
      case "space-quota" -> files.setQuota(
          new Path(words[1]), HdfsConstants.QUOTA_DONT_SET,
          words[2].equals("none") ? HdfsConstants.QUOTA_RESET : Long.parseLong(words[2]));
      case "make-folder" -> {
        Path path = new Path(words[1]);
        files.mkdirs(path);
        files.setPermission(path, new FsPermission((short) Integer.parseInt(words[2], 8)));
      }
      case "make-file" -> files.create(new Path(words[1])).close();
      case "erasure-code" -> {
        files.enableErasureCodingPolicy("XOR-2-1-1024k");
        files.setErasureCodingPolicy(new Path(words[1]), "XOR-2-1-1024k");
      }
      case "files-in" -> {
        return files.listStatus(new Path(words[1])).length;
      }
      case "replication" -> {
        return files.getFileStatus(new Path(words[1])).getReplication();
      }
      default -> throw new IllegalArgumentException(words[0]);
    }
    return 0;
  }
}
