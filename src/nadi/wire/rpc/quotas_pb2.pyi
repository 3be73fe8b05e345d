from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QuotasRequest(_message.Message):
    __slots__ = ("owner",)
    OWNER_FIELD_NUMBER: _ClassVar[int]
    owner: str
    def __init__(self, owner: _Optional[str] = ...) -> None: ...

class QuotaChange(_message.Message):
    __slots__ = ("owner", "kind", "limits")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CREATE: _ClassVar[QuotaChange.Kind]
        UPDATE: _ClassVar[QuotaChange.Kind]
        DELETE: _ClassVar[QuotaChange.Kind]
    CREATE: QuotaChange.Kind
    UPDATE: QuotaChange.Kind
    DELETE: QuotaChange.Kind
    OWNER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    kind: QuotaChange.Kind
    limits: bytes
    def __init__(self, owner: _Optional[str] = ..., kind: _Optional[_Union[QuotaChange.Kind, str]] = ..., limits: _Optional[bytes] = ...) -> None: ...

class QuotaUses(_message.Message):
    __slots__ = ("server", "uses")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    server: str
    uses: bytes
    def __init__(self, server: _Optional[str] = ..., uses: _Optional[bytes] = ...) -> None: ...

class QuotaRecords(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    def __init__(self, records: _Optional[bytes] = ...) -> None: ...
