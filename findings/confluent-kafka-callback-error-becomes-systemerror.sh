#!/usr/bin/env bash
# confluent-kafka: an error that Python itself raises in a callback, such as the TypeError of a comparison with None,
# reaches the caller of poll() or flush() as a SystemError without the error's type or text. An error that the callback
# raises by a `raise` statement arrives as it is. Comparing with None comes easily: Message.offset() is None for a record
# that the broker had already stored, which happens only after lost answers.
# Expected: the TypeError. Seen with confluent-kafka 2.16.1 (librdkafka 2.16.0) on Python 3.11.
# For users of nadi: tests/kafka/chaos.py checks offsets for None, as nadi's door answers a repeated batch like a broker.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
"$folder/venv/bin/python" - <<'END'
import confluent_kafka


def seen(callback):
    # no broker is there, so that the record's time runs out, and the callback is called
    producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300, "log_level": 0})
    producer.produce("topic", b"value", on_delivery=callback)
    try:
        producer.flush(10)
    except Exception as error:
        return error


def raises(error, message):
    raise TypeError("raised by the callback")


stated = seen(raises)
implied = seen(lambda error, message: None >= 0)
print(confluent_kafka.__version__, repr(stated), repr(implied))
assert type(stated) is TypeError, "a stated error arrives otherwise now"
assert type(implied) is SystemError and "'>='" not in str(implied), "an implied error arrives otherwise now"
END
