from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReportRequest(_message.Message):
    __slots__ = ("scope", "stream", "kind", "token")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    kind: str
    token: str
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., kind: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class ReportPage(_message.Message):
    __slots__ = ("records", "token")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    token: str
    def __init__(self, records: _Optional[bytes] = ..., token: _Optional[str] = ...) -> None: ...
