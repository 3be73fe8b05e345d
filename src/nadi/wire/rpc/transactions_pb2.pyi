from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommitTogetherRequest(_message.Message):
    __slots__ = ("scope", "stream", "transactions", "writerId", "timestamp")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    WRITERID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    transactions: _containers.RepeatedScalarFieldContainer[bytes]
    writerId: str
    timestamp: int
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., transactions: _Optional[_Iterable[bytes]] = ..., writerId: _Optional[str] = ..., timestamp: _Optional[int] = ...) -> None: ...

class CommitTogetherStatus(_message.Message):
    __slots__ = ("status", "reason")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[CommitTogetherStatus.Status]
        STREAM_NOT_FOUND: _ClassVar[CommitTogetherStatus.Status]
        FAILED: _ClassVar[CommitTogetherStatus.Status]
    SUCCESS: CommitTogetherStatus.Status
    STREAM_NOT_FOUND: CommitTogetherStatus.Status
    FAILED: CommitTogetherStatus.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: CommitTogetherStatus.Status
    reason: str
    def __init__(self, status: _Optional[_Union[CommitTogetherStatus.Status, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class FindCommitRequest(_message.Message):
    __slots__ = ("scope", "stream", "transactions", "waitMs")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    WAITMS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    transactions: _containers.RepeatedScalarFieldContainer[bytes]
    waitMs: int
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., transactions: _Optional[_Iterable[bytes]] = ..., waitMs: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("status", "reason", "cut")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MERGED: _ClassVar[Commit.Status]
        MERGING: _ClassVar[Commit.Status]
        STREAM_NOT_FOUND: _ClassVar[Commit.Status]
        FAILED: _ClassVar[Commit.Status]
    MERGED: Commit.Status
    MERGING: Commit.Status
    STREAM_NOT_FOUND: Commit.Status
    FAILED: Commit.Status
    class CutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    status: Commit.Status
    reason: str
    cut: _containers.ScalarMap[int, int]
    def __init__(self, status: _Optional[_Union[Commit.Status, str]] = ..., reason: _Optional[str] = ..., cut: _Optional[_Mapping[int, int]] = ...) -> None: ...

class BeginTransactionsRequest(_message.Message):
    __slots__ = ("scope", "stream", "leasesMs")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LEASESMS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    leasesMs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., leasesMs: _Optional[_Iterable[int]] = ...) -> None: ...

class BegunTransactions(_message.Message):
    __slots__ = ("transactions", "segments")
    class Segment(_message.Message):
        __slots__ = ("segment", "low", "high")
        SEGMENT_FIELD_NUMBER: _ClassVar[int]
        LOW_FIELD_NUMBER: _ClassVar[int]
        HIGH_FIELD_NUMBER: _ClassVar[int]
        segment: int
        low: float
        high: float
        def __init__(self, segment: _Optional[int] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedScalarFieldContainer[bytes]
    segments: _containers.RepeatedCompositeFieldContainer[BegunTransactions.Segment]
    def __init__(self, transactions: _Optional[_Iterable[bytes]] = ..., segments: _Optional[_Iterable[_Union[BegunTransactions.Segment, _Mapping]]] = ...) -> None: ...

class CommitTransactionsRequest(_message.Message):
    __slots__ = ("scope", "stream", "transactions", "writerId")
    class Transaction(_message.Message):
        __slots__ = ("id", "timestamp")
        ID_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        id: bytes
        timestamp: int
        def __init__(self, id: _Optional[bytes] = ..., timestamp: _Optional[int] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    WRITERID_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    transactions: _containers.RepeatedCompositeFieldContainer[CommitTransactionsRequest.Transaction]
    writerId: str
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., transactions: _Optional[_Iterable[_Union[CommitTransactionsRequest.Transaction, _Mapping]]] = ..., writerId: _Optional[str] = ...) -> None: ...

class CommitTransactionsStatus(_message.Message):
    __slots__ = ("status", "lost")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[CommitTransactionsStatus.Status]
        STREAM_NOT_FOUND: _ClassVar[CommitTransactionsStatus.Status]
    SUCCESS: CommitTransactionsStatus.Status
    STREAM_NOT_FOUND: CommitTransactionsStatus.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    status: CommitTransactionsStatus.Status
    lost: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, status: _Optional[_Union[CommitTransactionsStatus.Status, str]] = ..., lost: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AwaitTransactionsRequest(_message.Message):
    __slots__ = ("scope", "stream", "transactions", "waitMs")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    WAITMS_FIELD_NUMBER: _ClassVar[int]
    scope: str
    stream: str
    transactions: _containers.RepeatedScalarFieldContainer[bytes]
    waitMs: int
    def __init__(self, scope: _Optional[str] = ..., stream: _Optional[str] = ..., transactions: _Optional[_Iterable[bytes]] = ..., waitMs: _Optional[int] = ...) -> None: ...

class TransactionStates(_message.Message):
    __slots__ = ("states",)
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[TransactionStates.State]
        UNFINISHED: _ClassVar[TransactionStates.State]
        COMMITTED: _ClassVar[TransactionStates.State]
        ABORTED: _ClassVar[TransactionStates.State]
    UNKNOWN: TransactionStates.State
    UNFINISHED: TransactionStates.State
    COMMITTED: TransactionStates.State
    ABORTED: TransactionStates.State
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[TransactionStates.State]
    def __init__(self, states: _Optional[_Iterable[_Union[TransactionStates.State, str]]] = ...) -> None: ...
