from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("resource_logs",)
    RESOURCE_LOGS_FIELD_NUMBER: _ClassVar[int]
    resource_logs: _containers.RepeatedCompositeFieldContainer[ResourceLogs]
    def __init__(self, resource_logs: _Optional[_Iterable[_Union[ResourceLogs, _Mapping]]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("partial_success",)
    PARTIAL_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    partial_success: Partial
    def __init__(self, partial_success: _Optional[_Union[Partial, _Mapping]] = ...) -> None: ...

class Partial(_message.Message):
    __slots__ = ("rejected_log_records", "error_message")
    REJECTED_LOG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    rejected_log_records: int
    error_message: str
    def __init__(self, rejected_log_records: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class ResourceLogs(_message.Message):
    __slots__ = ("resource", "scope_logs")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_LOGS_FIELD_NUMBER: _ClassVar[int]
    resource: Attributes
    scope_logs: _containers.RepeatedCompositeFieldContainer[ScopeLogs]
    def __init__(self, resource: _Optional[_Union[Attributes, _Mapping]] = ..., scope_logs: _Optional[_Iterable[_Union[ScopeLogs, _Mapping]]] = ...) -> None: ...

class Attributes(_message.Message):
    __slots__ = ("attributes",)
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, attributes: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class ScopeLogs(_message.Message):
    __slots__ = ("scope", "log_records")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LOG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    scope: LogScope
    log_records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, scope: _Optional[_Union[LogScope, _Mapping]] = ..., log_records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class LogScope(_message.Message):
    __slots__ = ("name", "version", "attributes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    attributes: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., attributes: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("time_unix_nano", "severity_number", "severity_text", "body", "attributes", "flags", "trace_id", "span_id", "observed_time_unix_nano", "event_name")
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_TEXT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    EVENT_NAME_FIELD_NUMBER: _ClassVar[int]
    time_unix_nano: int
    severity_number: int
    severity_text: str
    body: Value
    attributes: _containers.RepeatedCompositeFieldContainer[Pair]
    flags: int
    trace_id: bytes
    span_id: bytes
    observed_time_unix_nano: int
    event_name: str
    def __init__(self, time_unix_nano: _Optional[int] = ..., severity_number: _Optional[int] = ..., severity_text: _Optional[str] = ..., body: _Optional[_Union[Value, _Mapping]] = ..., attributes: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., flags: _Optional[int] = ..., trace_id: _Optional[bytes] = ..., span_id: _Optional[bytes] = ..., observed_time_unix_nano: _Optional[int] = ..., event_name: _Optional[str] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: Value
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("string_value", "bool_value", "int_value", "double_value", "array_value", "kvlist_value", "bytes_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_VALUE_FIELD_NUMBER: _ClassVar[int]
    KVLIST_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    bool_value: bool
    int_value: int
    double_value: float
    array_value: Values
    kvlist_value: Pairs
    bytes_value: bytes
    def __init__(self, string_value: _Optional[str] = ..., bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., array_value: _Optional[_Union[Values, _Mapping]] = ..., kvlist_value: _Optional[_Union[Pairs, _Mapping]] = ..., bytes_value: _Optional[bytes] = ...) -> None: ...

class Values(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Pairs(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, values: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...
