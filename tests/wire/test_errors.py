"""Errors over the wire: each returns as itself, or as a base class of it, or is never sent.

The three lists contain every public error and every command: new ones must be added to one of them.
"""

from __future__ import annotations

import pickle

import grpc
import pytest

from nadi import errors as e
from nadi.search import IndexNotFoundError
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.decoder import Decoder
from nadi.wire.errors import KeyNotFoundError, TableLengthError, error_of, error_reply
from nadi.wire.rpc.codes import CODES, code_of, kind_of

S = "scope/stream/0.#epoch.0"
W = bytes(16)
AT = 12
KINDS = [kind for kind in vars(e).values() if isinstance(kind, type) and issubclass(kind, e.NadiError)]

SAME: list[e.NadiError] = [  # with the same attributes
    e.SegmentNotFoundError(S),
    e.StreamSealedError(S),
    e.TruncatedError(S, AT, 40),
    e.DamagedDataError(S, AT, 40, "its chunk\nis missing"),
    e.AlreadyExistsError("segment", S),
    e.NotEmptyError("the table has 3 entries"),
    e.ConditionFailedError("the key is at version 3"),
    e.PermissionDeniedError("the token is for another segment"),
    e.TokenExpiredError("it ended a minute ago"),
    e.NotOwnerError(S, "other:12345"),
    e.StorageFullError("the disk is full"),
    e.ChunksUnavailableError("tier 2 doesn't answer"),
    e.InvalidArgumentError("a key has 1 to 8,192 bytes, not 0"),
]
BECOMES: list[tuple[e.NadiError, type[e.NadiError]]] = [  # Pravega's protocol can't say them more precisely
    (e.InvalidNameError("stream", "a b", "letters and digits"), e.InvalidArgumentError),
    (e.InvalidStreamCutError("a cut of another stream"), e.InvalidArgumentError),
    (e.PastEndError(S, 40, AT), e.InvalidArgumentError),
    (e.EventTooLargeError(9_000_000, 8_388_608), e.InvalidArgumentError),
    (e.SegmentTruncatedError(S), e.TruncatedError),
    (e.EpochExpiredError("epoch 3 is forgotten"), e.TruncatedError),
    (e.QueryTruncatedError("scope/stream", e.TruncatedError(S, AT, 40)), e.TruncatedError),
]
NEVER: list[type[e.NadiError]] = [
    # families
    e.NadiError, e.NotFoundError, e.ConflictError, e.AccessDeniedError,
    # of what a controller and its clients speak of
    e.ScopeNotFoundError, e.StreamNotFoundError, e.ReaderGroupNotFoundError, e.SubscriberNotFoundError,
    e.KeyValueTableNotFoundError, e.WriterNotFoundError, e.TransactionNotFoundError, e.StreamNotSealedError,
    e.KeyValueTableRecreatedError,
    e.StreamRecreatedError, e.GenerationMismatchError, e.TransactionFailedError, e.NotAuthenticatedError,
    # a client's own
    e.BookmarkNotFoundError, e.SliceNotFoundError, e.StreamTableNotFoundError, e.UnknownSchemaError,
    e.SchemaIncompatibleError, e.SerializationError, e.ContentionError, e.ReaderOfflineError, e.RequestTimeoutError,
    e.QuotaExceededError,
    # the connection ends without a word
    e.UnavailableError, e.ClosedError, e.ProtocolError, e.FencedError,
    # a server's, when it starts
    e.StoreError, e.EncryptionKeyError,
]  # fmt: skip
OF_SERVER = [  # the server only closes the connection
    e.DataFolderError, e.DataFolderLockedError, e.DataFolderTakeoverError, e.DataFolderVersionError, e.CorruptLogError,
    e.DamagedStateError,
]  # fmt: skip

REFUSALS: list[tuple[wire.Command, type[e.NadiError]]] = [
    (wire.NoSuchSegment(1, S), e.SegmentNotFoundError),
    (wire.SegmentIsSealed(1, S), e.StreamSealedError),
    (wire.SegmentIsTruncated(1, S, 40), e.TruncatedError),
    (wire.SegmentAlreadyExists(1, S), e.AlreadyExistsError),
    (wire.WrongHost(1, S, "other:12345"), e.NotOwnerError),
    (wire.TableSegmentNotEmpty(1, S), e.NotEmptyError),
    (wire.TableKeyBadVersion(1, S), e.ConditionFailedError),
    (wire.TableKeyDoesNotExist(1, S), e.ConditionFailedError),
    (wire.ConditionalCheckFailed(W, 3, 1), e.ConditionFailedError),
    (wire.InvalidEventNumber(W, 1, "", 3), e.UnavailableError),
    (wire.OperationUnsupported(1, "mergeSegments"), e.InvalidArgumentError),
    (wire.AuthTokenCheckFailed(1), e.PermissionDeniedError),  # unspecified, from an old server
    (wire.AuthTokenCheckFailed(1, "", 0), e.PermissionDeniedError),
    (wire.AuthTokenCheckFailed(1, "", 1), e.TokenExpiredError),
    (wire.ErrorMessage(1, S, "unspecified", -1), e.UnavailableError),
    (wire.ErrorMessage(1, S, "an illegal argument", 0), e.InvalidArgumentError),
    (wire.ErrorMessage(1, S, "no room", wire.STORAGE_FULL), e.StorageFullError),
    (wire.ErrorMessage(1, S, "damage without a range", wire.DAMAGED_DATA), e.ProtocolError),
]
ANSWERS: list[type[wire.Command]] = [
    wire.Hello, wire.KeepAlive, wire.AppendSetup, wire.DataAppended, wire.SegmentRead, wire.StreamSegmentInfo,
    wire.SegmentCreated, wire.SegmentSealed, wire.SegmentDeleted, wire.SegmentPolicyUpdated, wire.SegmentAttribute,
    wire.SegmentAttributeUpdated, wire.SegmentTruncated, wire.OffsetLocated, wire.SegmentsMerged,
    wire.SegmentsBatchMerged, wire.TableSegmentInfo, wire.TableEntriesUpdated, wire.TableKeysRemoved, wire.TableRead,
    wire.TableKeysRead, wire.TableEntriesRead, wire.TableEntriesDeltaRead, wire.MomentLocated, wire.ScrubReported,
    wire.SegmentLoads, wire.ChunksLocated, wire.MomentsListed, wire.EventSizesListed,
    wire.TimesIndexed,
    wire.StorageFlushed,
]  # fmt: skip
APPENDS = {wire.AppendBlock, wire.AppendBlockEnd, wire.ConditionalAppend, wire.ConditionalBlockEnd, wire.ReportKeys}


def over_the_wire(error: Exception) -> e.NadiError | None:
    """Return the error that a client raises if the server of segment S raised `error` at offset AT."""
    decoder = Decoder(1 << 16)
    frame = encode(error_reply(error, 7, S, AT))
    decoder.get_buffer(len(frame))[: len(frame)] = frame
    (reply,) = decoder.buffer_updated(len(frame))
    return error_of(reply)


@pytest.mark.parametrize("error", SAME, ids=lambda error: type(error).__name__)
def test_error_round_trips(error: e.NadiError) -> None:
    found = over_the_wire(error)
    assert type(found) is type(error)
    assert vars(found) == vars(error)


@pytest.mark.parametrize(("error", "kind"), BECOMES, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_error_returns_as_its_family(error: e.NadiError, kind: type[e.NadiError]) -> None:
    found = over_the_wire(error)
    assert type(found) is kind
    assert isinstance(error, kind)
    if kind is e.InvalidArgumentError:
        assert str(error) in str(found), "the message has the reason"


@pytest.mark.parametrize("kind", NEVER + OF_SERVER, ids=lambda kind: kind.__name__)
def test_unmapped_error_is_raised(kind: type[e.NadiError]) -> None:
    error = kind.__new__(kind, "for the server's log alone")
    with pytest.raises(e.UnavailableError if kind in OF_SERVER else kind):
        error_reply(error, 7, S)


def test_every_error_is_in_one_list() -> None:
    listed = [type(error) for error in SAME] + [type(error) for error, _ in BECOMES] + NEVER + OF_SERVER
    assert sorted(kind.__name__ for kind in listed) == sorted(kind.__name__ for kind in KINDS)


def test_errors_of_a_tables_server() -> None:
    """Official clients use these for a table's length; nadi's client never queries it."""
    assert type(over_the_wire(KeyNotFoundError("the key is absent"))) is e.ConditionFailedError
    assert error_reply(KeyNotFoundError("the key is absent"), 7, S) == wire.TableKeyDoesNotExist(7, S)
    assert error_reply(TableLengthError(40), 7, S) == wire.SegmentIsTruncated(7, S, 40)


@pytest.mark.parametrize(("reply", "kind"), REFUSALS, ids=str)
def test_a_refusal_is_an_error(reply: wire.Command, kind: type[e.NadiError]) -> None:
    assert type(error_of(reply)) is kind


def test_every_reply_is_an_answer_or_a_refusal() -> None:
    requests = {kind for kind in wire.CODES.values() if "token" in kind.__struct_fields__} | APPENDS
    refusals = {type(reply) for reply, _ in REFUSALS}
    assert len(requests) + len(ANSWERS) + len(refusals) == len(wire.CODES), "none is in two lists"
    assert {*requests, *ANSWERS, *refusals} == {*wire.CODES.values()}


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_answer_is_not_an_error(kind: type[wire.Command]) -> None:
    fields = [None] * len(kind.__struct_fields__)
    assert error_of(kind(*fields)) is None


# --- between processes, as those of a pool do -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_the_same_in_another_process(kind: type[e.NadiError]) -> None:
    error = kind.__new__(kind)
    error.args = ("its words",)
    error.__dict__["value"] = 5
    made = pickle.loads(pickle.dumps(error))
    assert (type(made), made.args, made.__dict__, str(made)) == (kind, error.args, error.__dict__, "its words")


@pytest.mark.parametrize(
    "error", [e.StreamNotFoundError("home", "logs"), IndexNotFoundError("home", "logs"), e.TruncatedError(S, 5, 9)]
)
def test_an_error_is_raised_in_another_process_as_it_was(error: e.NadiError) -> None:
    made = pickle.loads(pickle.dumps(error))
    assert (type(made), str(made), made.__dict__) == (type(error), str(error), error.__dict__)


# --- as gRPC codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_raises_a_kind_of_what_the_server_raised(kind: type[e.NadiError]) -> None:
    code = code_of(kind.__new__(kind))
    assert grpc.StatusCode[code]
    back = kind_of(code, "quota exceeded: 5" if kind is e.QuotaExceededError else "")
    assert code == "INTERNAL" if back is None else issubclass(kind, back)
    if kind in CODES:
        assert back is kind
