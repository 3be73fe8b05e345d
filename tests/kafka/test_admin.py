"""Administration of topics and groups, as admin clients expect it from Kafka."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from tests.kafka.raw import Connection, requests
from tests.kafka.support import Door


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    ("partitions", "properties", "code"),
    [
        (1, {"no.such.property": "1"}, KafkaError.INVALID_CONFIG),
        (1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        (1, {"max.message.bytes": "-1"}, KafkaError.INVALID_CONFIG),
        (1, {"message.timestamp.type": "soon"}, KafkaError.INVALID_CONFIG),
        (0, {}, KafkaError.INVALID_PARTITIONS),
    ],
)
def test_create_topics_with_wrong_properties_fails(
    door: Door, partitions: int, properties: Mapping[str, str], code: int, *, validate_only: bool
) -> None:
    admin = door.admin()
    new = NewTopic("refused", partitions, 1, config=dict(properties))
    with pytest.raises(KafkaException) as failed:
        admin.create_topics([new], validate_only=validate_only)["refused"].result()
    assert failed.value.args[0].code() == code
    assert "refused" not in admin.list_topics().topics


def test_create_topics_validate_only_creates_nothing(door: Door) -> None:
    admin = door.admin()
    new = NewTopic("dry", 2, 1)
    admin.create_topics([new], validate_only=True)["dry"].result()
    assert "dry" not in admin.list_topics().topics
    admin.create_topics([new])["dry"].result()
    with pytest.raises(KafkaException) as failed:
        admin.create_topics([new], validate_only=True)["dry"].result()
    assert failed.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def altered(admin: AdminClient, topic: str, name: str, operation: AlterConfigOpType, value: str | None) -> str:
    """Change a property; return its value then."""
    change = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result()
    return str(admin.describe_configs([resource])[resource].result()[name].value)


def test_incremental_alter_configs_edits_lists(door: Door) -> None:
    door.create("listed", 1)
    admin = door.admin()
    assert altered(admin, "listed", "cleanup.policy", AlterConfigOpType.APPEND, "compact") == "delete,compact"
    assert altered(admin, "listed", "cleanup.policy", AlterConfigOpType.SUBTRACT, "delete") == "compact"
    assert altered(admin, "listed", "cleanup.policy", AlterConfigOpType.DELETE, None) == "delete"
    assert altered(admin, "listed", "retention.ms", AlterConfigOpType.SET, "60000") == "60000"
    assert altered(admin, "listed", "retention.ms", AlterConfigOpType.SET, "0") == "1"
    with pytest.raises(KafkaException) as failed:
        altered(admin, "listed", "retention.ms", AlterConfigOpType.APPEND, "1")
    assert failed.value.args[0].code() == KafkaError.INVALID_CONFIG


@pytest.mark.parametrize("name", [None, ""])
def test_metadata_of_a_topic_id_has_the_name(door: Door, name: str | None) -> None:
    kinds = requests(3, 12)
    with Connection(door.address) as connection:
        topic_id = connection.metadata("identified").topics[0].topic_id
        asked = kinds.MetadataRequestTopic(topic_id=topic_id, name=name)
        options = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        (topic,) = connection.ask(kinds.MetadataRequest(topics=(asked,), **options)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.none, "identified", topic_id)


def test_describe_configs_tells_defaults_from_what_was_set(door: Door) -> None:
    door.create("described", 1, cleanup_policy="compact", retention_ms="60000")
    resource = ConfigResource(ResourceType.TOPIC, "described")
    admin = door.admin()
    properties = admin.describe_configs([resource])[resource].result()
    assert {name for name, each in properties.items() if not each.is_default} == {"cleanup.policy", "retention.ms"}


def test_authorized_operations_are_described_if_asked(door: Door) -> None:
    door.create("allowed", 1)
    admin = door.admin()
    (described,) = admin.describe_topics(TopicCollection(["allowed"]), include_authorized_operations=True).values()
    of_topic = set(described.result().authorized_operations)
    assert {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALTER} <= of_topic
    (unasked,) = admin.describe_topics(TopicCollection(["allowed"])).values()
    assert not unasked.result().authorized_operations
    (group,) = admin.describe_consumer_groups(["allowed"], include_authorized_operations=True).values()
    assert set(group.result().authorized_operations) == {
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
    }
    cluster = admin.describe_cluster(include_authorized_operations=True).result()
    assert AclOperation.CREATE in cluster.authorized_operations
    assert AclOperation.CLUSTER_ACTION not in cluster.authorized_operations
