"""The SDK of CloudEvents for Python as a peer: reads the messages that it is given, or writes events in both modes."""

import json
import sys

from cloudevents.core.bindings import amqp, http, kafka
from cloudevents.core.v1.event import CloudEvent

TYPE = "content-type"


class Kafka:
    @staticmethod
    def read(headers, key, body):
        given = {name: value.encode() for name, value in headers.items()}
        return kafka.from_kafka_event(kafka.KafkaMessage(given, key, body))

    @staticmethod
    def write(event, structured):
        told = (kafka.to_structured_event if structured else kafka.to_binary_event)(event)
        return {name: value.decode() for name, value in told.headers.items()}, told.value


class Amqp:
    @staticmethod
    def read(headers, _key, body):
        properties = {TYPE: headers.pop(TYPE)} if TYPE in headers else {}
        return amqp.from_amqp_event(amqp.AMQPMessage(properties, headers, body))

    @staticmethod
    def write(event, structured):
        told = (amqp.to_structured_event if structured else amqp.to_binary_event)(event)
        return {**told.properties, **told.application_properties}, told.application_data


class Http:
    @staticmethod
    def read(headers, _key, body):
        return http.from_http_event(http.HTTPMessage(headers, body))

    @staticmethod
    def write(event, structured):
        told = (http.to_structured_event if structured else http.to_binary_event)(event)
        return told.headers, told.body


def read(binding, message):
    event = binding.read(message["headers"], message["key"], bytes(message["body"]))
    data = event.get_data()
    is_bytes = isinstance(data, (bytes, bytearray))
    return {"attributes": event.get_attributes(), "data": {"bytes": list(data)} if is_bytes else data}


def write(binding, attributes, structured):
    headers, body = binding.write(CloudEvent(attributes, {"cents": 1177}), structured)
    return {"headers": {name: str(value) for name, value in headers.items()}, "body": list(body)}


asked = json.load(sys.stdin)
binding = {"kafka": Kafka, "amqp": Amqp, "http": Http}[asked["binding"]]
answer = {
    "read": [read(binding, message) for message in asked["read"]],
    "written": [write(binding, dict(event), mode) for event in asked["write"] for mode in (False, True)],
}
json.dump(answer, sys.stdout, default=str)
