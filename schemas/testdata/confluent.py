"""Reads one topic with Confluent's own consumer and Avro deserializer, prints
each record as a line of JSON, then writes each back with Confluent's serializer
and prints the bytes, for the test to compare with ours.

usage: confluent.py BROKERS REGISTRY TOPIC COUNT
"""
import datetime
import json
import sys

from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

brokers, registry, topic, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
client = SchemaRegistryClient({"url": registry})
deserialize = AvroDeserializer(client)
latest = client.get_latest_version(topic + "-value")
serialize = AvroSerializer(client, latest.schema.schema_str, conf={"auto.register.schemas": False, "use.latest.version": True})
consumer = Consumer({"bootstrap.servers": brokers, "group.id": topic + ".python", "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
context = SerializationContext(topic, MessageField.VALUE)


def plain(value):
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value


seen = 0
for _ in range(300):
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    record = deserialize(message.value(), context)
    print(json.dumps({
        "record": {k: plain(v) for k, v in record.items()},
        "again": serialize(record, context).hex(),
        "headers": {k: v.decode() for k, v in (message.headers() or [])},
    }), flush=True)
    seen += 1
    if seen == count:
        break
consumer.close()
sys.exit(0 if seen == count else 1)
