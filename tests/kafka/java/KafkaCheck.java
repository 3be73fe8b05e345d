import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/** Checks a broker with the official Java client. Arguments: bootstrap servers, the check to run, more options. */
public final class KafkaCheck {
    interface Check { void run() throws Exception; }

    static final Map<String, Object> common = new HashMap<>();
    static final String RUN = Long.toString(System.nanoTime(), 36);
    static Admin admin;

    static void expect(boolean condition, String message) {
        if (!condition) throw new AssertionError(message);
    }

    static void same(Object expected, Object actual) {
        expect(Objects.equals(expected, actual), "expected " + expected + ", not " + actual);
    }

    static <T extends Throwable> T fails(Class<T> kind, Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            if (kind.isInstance(cause)) return kind.cast(cause);
            throw new AssertionError("expected " + kind.getSimpleName() + ", not " + cause);
        }
        throw new AssertionError("expected " + kind.getSimpleName());
    }

    static KafkaProducer<String, String> producer(Object... more) {
        Map<String, Object> options = new HashMap<>(common);
        for (int i = 0; i < more.length; i += 2) options.put((String) more[i], more[i + 1]);
        return new KafkaProducer<>(options, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, Object... more) {
        Map<String, Object> options = new HashMap<>(common);
        options.putAll(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", false));
        if (group != null) options.put("group.id", group);
        for (int i = 0; i < more.length; i += 2) options.put((String) more[i], more[i + 1]);
        return new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
    }

    static String topic(String name, int partitions, String... configs) throws Exception {
        String topic = name + "_" + RUN;
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i < configs.length; i += 2) options.put(configs[i], configs[i + 1]);
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(options))).all().get();
        return topic;
    }

    static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (records.size() < count) {
            expect(System.nanoTime() < deadline, records.size() + " of " + count + " records came");
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    static void idempotent() throws Exception {
        String topic = topic("idempotent", 3);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (var producer = producer("compression.type", codec, "linger.ms", 5)) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int i = 0; i < 500; i++)
                    sent.add(producer.send(new ProducerRecord<>(topic, null, 1_700_000_000_000L + i, "k" + i % 7, codec + i, List.of(new RecordHeader("h", new byte[] {1}), new RecordHeader("n", null)))));
                for (var each : sent) expect(each.get().hasOffset(), "an offset");
            }
        }
        try (var consumer = consumer(null)) {
            consumer.assign(IntStream.range(0, 3).mapToObj(p -> new TopicPartition(topic, p)).toList());
            var records = read(consumer, 2500);
            same(2500, records.stream().map(ConsumerRecord::value).collect(Collectors.toSet()).size());
            for (var record : records) {
                same(2, record.headers().toArray().length);
                same(org.apache.kafka.common.record.TimestampType.CREATE_TIME, record.timestampType());
            }
            expect(consumer.poll(Duration.ofMillis(300)).isEmpty(), "nothing else");
        }
    }


    static void transactional() throws Exception {
        String in = topic("tx_in", 2), out = topic("tx_out", 2), group = "tx_" + RUN;
        try (var producer = producer()) {
            for (int i = 0; i < 100; i++) producer.send(new ProducerRecord<>(in, i % 2, "k" + i, "v" + i)).get();
        }
        try (var producer = producer("transactional.id", "tx_" + RUN); var consumer = consumer(group, "isolation.level", "read_committed")) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            int done = 0, round = 0;
            while (done < 100) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(out, record.key(), record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1, "m" + round));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (round++ == 0) {
                    producer.abortTransaction();
                    consumer.seekToBeginning(consumer.assignment());
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
            var committed = consumer.committed(Set.of(new TopicPartition(in, 0), new TopicPartition(in, 1)));
            same(50L, committed.get(new TopicPartition(in, 0)).offset());
        }
        try (var consumer = consumer(null, "isolation.level", "read_committed")) {
            consumer.assign(List.of(new TopicPartition(out, 0), new TopicPartition(out, 1)));
            same(100, read(consumer, 100).stream().map(ConsumerRecord::value).collect(Collectors.toSet()).size());
            expect(consumer.poll(Duration.ofMillis(500)).isEmpty(), "nothing aborted");
        }
        try (var first = producer("transactional.id", "fence_" + RUN); var second = producer("transactional.id", "fence_" + RUN)) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>(out, "a", "fenced")).get();
            second.initTransactions();
            try {
                first.commitTransaction();
                throw new AssertionError("the first producer must be fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            }
        }
    }

    static void rebalance(String assignor) throws Exception {
        String topic = topic("rebalance" + assignor.length(), 6), group = "rebalance_" + RUN + assignor.length();
        AtomicInteger sent = new AtomicInteger();
        AtomicBoolean stop = new AtomicBoolean();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger doubled = new AtomicInteger();
        Thread writer = new Thread(() -> {
            try (var producer = producer("linger.ms", 2)) {
                while (!stop.get()) {
                    for (int i = 0; i < 20; i++) producer.send(new ProducerRecord<>(topic, null, "v" + sent.getAndIncrement()));
                    producer.flush();
                    try { Thread.sleep(10); } catch (InterruptedException e) { return; }
                }
            }
        });
        writer.start();
        class Member extends Thread {
            final AtomicBoolean leaves = new AtomicBoolean();
            volatile int assigned;
            volatile int lost;
            volatile Throwable failure;
            public void run() {
                try (var consumer = consumer(group, "partition.assignment.strategy", assignor, "session.timeout.ms", 6000, "heartbeat.interval.ms", 300)) {
                    consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                        public void onPartitionsRevoked(Collection<TopicPartition> partitions) { consumer.commitSync(); }
                        public void onPartitionsAssigned(Collection<TopicPartition> partitions) { }
                        public void onPartitionsLost(Collection<TopicPartition> partitions) { lost++; }
                    });
                    while (!leaves.get()) {
                        for (var record : consumer.poll(Duration.ofMillis(100))) if (!seen.add(record.value())) doubled.incrementAndGet();
                        consumer.commitAsync();
                        assigned = consumer.assignment().size();
                    }
                    consumer.commitSync();
                } catch (Throwable error) { failure = error; }
            }
        }
        List<Member> members = new ArrayList<>();
        for (int count = 1; count <= 3; count++) {
            Member member = new Member();
            members.add(member);
            member.start();
            final int each = 6 / count;
            waitFor("each of " + count + " members has " + each + " partitions", () -> members.stream().allMatch(m -> m.assigned == each));
        }
        var described = admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
        same(3, described.members().size());
        same(GroupState.STABLE, described.groupState());
        same(2, described.members().iterator().next().assignment().topicPartitions().size());
        members.get(0).leaves.set(true);
        members.get(0).join();
        waitFor("each of 2 has 3", () -> members.subList(1, 3).stream().allMatch(m -> m.assigned == 3));
        stop.set(true);
        writer.join();
        waitFor("all records", () -> seen.size() == sent.get());
        for (Member member : members) { member.leaves.set(true); }
        for (Member member : members) { member.join(); expect(member.failure == null, "" + member.failure); same(0, member.lost); }
        System.out.println("  " + sent.get() + " records, " + doubled.get() + " twice");
        same(0, doubled.get());
        same(sent.get(), (int) (long) admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values().stream().mapToLong(OffsetAndMetadata::offset).sum());
    }

    static void waitFor(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (!condition.get()) {
            expect(System.nanoTime() < deadline, "not within 30 s: " + what);
            Thread.sleep(50);
        }
    }
    interface Condition { boolean get() throws Exception; }

    static void seekByTime() throws Exception {
        String topic = topic("times", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = producer("linger.ms", 20)) {
            for (int i = 0; i < 1000; i++) producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + 10 * i, "k", "v" + i));
        }
        try (var consumer = consumer(null)) {
            for (int i : new int[] {0, 1, 499, 999}) {
                var found = consumer.offsetsForTimes(Map.of(partition, 1_700_000_000_000L + 10 * i - 5)).get(partition);
                same((long) i, found.offset());
                same(1_700_000_000_000L + 10 * i, found.timestamp());
            }
            same(null, consumer.offsetsForTimes(Map.of(partition, 1_800_000_000_000L)).get(partition));
            same(Map.of(partition, 1000L), consumer.endOffsets(List.of(partition)));
            same(Map.of(partition, 0L), consumer.beginningOffsets(List.of(partition)));
            consumer.assign(List.of(partition));
            consumer.seek(partition, consumer.offsetsForTimes(Map.of(partition, 1_700_000_005_000L)).get(partition).offset());
            same("v500", read(consumer, 1).get(0).value());
            same(500L + 0, consumer.currentLag(partition).orElse(-1) + consumer.position(partition) - 500);
        }
        var max = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).partitionResult(partition).get();
        same(999L, max.offset());
        same(1_700_000_009_990L, max.timestamp());
        same(0L, admin.listOffsets(Map.of(partition, OffsetSpec.earliestLocal())).partitionResult(partition).get().offset());
        same(-1L, admin.listOffsets(Map.of(partition, OffsetSpec.latestTiered())).partitionResult(partition).get().offset());
    }

    static void topics() throws Exception {
        String name = topic("admin", 3, "retention.ms", "3600000", "cleanup.policy", "compact");
        fails(TopicExistsException.class, () -> admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get());
        fails(InvalidTopicException.class, () -> admin.createTopics(List.of(new NewTopic("a/b", 1, (short) 1))).all().get());
        fails(InvalidPartitionsException.class, () -> admin.createTopics(List.of(new NewTopic("zero_" + RUN, 0, (short) 1))).all().get());
        fails(InvalidConfigurationException.class, () -> admin.createTopics(List.of(new NewTopic("cfg_" + RUN, 1, (short) 1).configs(Map.of("nonsense", "1")))).all().get());
        admin.createTopics(List.of(new NewTopic("dry_" + RUN, 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all().get();
        expect(!admin.listTopics().names().get().contains("dry_" + RUN), "a dry run creates nothing");
        var created = admin.createTopics(List.of(new NewTopic("meta_" + RUN, 2, (short) 1)));
        same(2, created.numPartitions("meta_" + RUN).get());
        same(1, created.replicationFactor("meta_" + RUN).get());
        expect(!created.config("meta_" + RUN).get().entries().isEmpty(), "configs of a created topic");
        var id = created.topicId("meta_" + RUN).get();
        same("meta_" + RUN, admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name());
        var described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        same(3, described.partitions().size());
        expect(described.partitions().get(0).leader() != null, "a leader");
        fails(UnknownTopicOrPartitionException.class, () -> admin.describeTopics(List.of("missing_" + RUN)).allTopicNames().get());
        expect(!admin.listTopics().names().get().contains("missing_" + RUN), "describing creates nothing");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        var config = admin.describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all().get().get(resource);
        same("3600000", config.get("retention.ms").value());
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.get("retention.ms").source());
        same("compact", config.get("cleanup.policy").value());
        for (String each : List.of("min.insync.replicas", "retention.bytes", "max.message.bytes", "message.timestamp.type")) expect(config.get(each) != null, "no property " + each);
        same(false, config.get("retention.ms").isDefault());
        same(true, config.get("retention.bytes").isDefault());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET), new AlterConfigOp(new ConfigEntry("cleanup.policy", ""), AlterConfigOp.OpType.DELETE)))).all().get();
        config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        same("7200000", config.get("retention.ms").value());
        same("delete", config.get("cleanup.policy").value());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
        same("delete,compact", admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value());
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.SUBTRACT)))).all().get();
        same("compact", admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value());
        fails(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "abc"), AlterConfigOp.OpType.SET)))).all().get());
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all().get();
        same(5, admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size());
        fails(InvalidPartitionsException.class, () -> admin.createPartitions(Map.of(name, NewPartitions.increaseTo(2))).all().get());
        fails(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of("missing_" + RUN)).all().get());
        admin.deleteTopics(List.of(name)).all().get();
        expect(!admin.listTopics().names().get().contains(name), "a deleted topic");
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
    }

    static void records() throws Exception {
        String topic = topic("deleted", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = producer("linger.ms", 0, "batch.size", 1)) {
            for (int i = 0; i < 100; i++) producer.send(new ProducerRecord<>(topic, "v" + i)).get();
        }
        same(40L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(40))).lowWatermarks().get(partition).get().lowWatermark());
        same(40L, admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).partitionResult(partition).get().offset());
        fails(org.apache.kafka.common.errors.OffsetOutOfRangeException.class, () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(400))).all().get());
        try (var consumer = consumer(null)) {
            consumer.assign(List.of(partition));
            same("v40", read(consumer, 60).get(0).value());
        }
        try (var consumer = consumer(null, "auto.offset.reset", "none")) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 5);
            fails(org.apache.kafka.clients.consumer.OffsetOutOfRangeException.class, () -> { for (int i = 0; i < 20; i++) consumer.poll(Duration.ofMillis(200)); return null; });
        }
        same(100L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).lowWatermarks().get(partition).get().lowWatermark());
        try (var producer = producer("max.request.size", 20_000_000, "buffer.memory", 64_000_000)) {
            fails(RecordTooLargeException.class, () -> producer.send(new ProducerRecord<>(topic, "x".repeat(3_000_000))).get());
        }
    }

    static void groups() throws Exception {
        String topic = topic("grouped", 2), group = "admin_" + RUN;
        try (var producer = producer()) {
            for (int i = 0; i < 20; i++) producer.send(new ProducerRecord<>(topic, i % 2, "k", "v" + i)).get();
        }
        try (var consumer = consumer(group, "group.instance.id", "static-1", "client.id", "checker")) {
            consumer.subscribe(List.of(topic));
            read(consumer, 20);
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(4, Optional.of(0), "note")));
            var listed = admin.listGroups(ListGroupsOptions.forConsumerGroups()).all().get();
            expect(listed.stream().anyMatch(each -> each.groupId().equals(group)), "a listed group: " + listed);
            expect(admin.listConsumerGroups(new ListConsumerGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))).all().get().stream().anyMatch(each -> each.groupId().equals(group)), "a stable group");
            var member = admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().iterator().next();
            same("checker", member.clientId());
            same(Optional.of("static-1"), member.groupInstanceId());
            same(2, member.assignment().topicPartitions().size());
            fails(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            fails(UnknownMemberIdException.class, () -> admin.alterConsumerGroupOffsets(group, Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1))).all().get());
            fails(GroupSubscribedToTopicException.class, () -> admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 0))).all().get());
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("static-1")))).all().get();
        }
        var committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        same("note", committed.get(new TopicPartition(topic, 0)).metadata());
        admin.alterConsumerGroupOffsets(group, Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(3))).all().get();
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 0))).all().get();
        committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        same(Set.of(new TopicPartition(topic, 1)), committed.keySet());
        admin.deleteConsumerGroups(List.of(group)).all().get();
        fails(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        same(GroupState.DEAD, admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState());
    }

    static void cluster() throws Exception {
        var cluster = admin.describeCluster();
        expect(cluster.controller().get() != null, "a controller");
        expect(cluster.clusterId().get() != null, "an id");
        int node = cluster.nodes().get().iterator().next().id();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + node);
        expect(!admin.describeConfigs(List.of(broker)).all().get().get(broker).entries().isEmpty(), "properties");
    }

    public static void main(String[] arguments) throws Exception {
        common.put("bootstrap.servers", arguments[0]);
        for (int i = 2; i < arguments.length; i += 2) common.put(arguments[i], arguments[i + 1]);
        Map<String, Object> options = new HashMap<>(common);
        options.putAll(Map.of("default.api.timeout.ms", 20000, "request.timeout.ms", 10000));
        admin = Admin.create(options);
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("idempotent", KafkaCheck::idempotent);
        checks.put("transactional", KafkaCheck::transactional);
        checks.put("cooperative", () -> rebalance("org.apache.kafka.clients.consumer.CooperativeStickyAssignor"));
        checks.put("range", () -> rebalance("org.apache.kafka.clients.consumer.RangeAssignor"));
        checks.put("times", KafkaCheck::seekByTime);
        checks.put("topics", KafkaCheck::topics);
        checks.put("records", KafkaCheck::records);
        checks.put("groups", KafkaCheck::groups);
        checks.put("cluster", KafkaCheck::cluster);
        checks.get(arguments[1]).run();
        admin.close(Duration.ofSeconds(2));
    }
}
