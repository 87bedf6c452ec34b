"""Remote proxies: what a unittest file and the candidate's module, in two processes, see of each other.

Plain values cross by value, exactly; anything else stays where it is and crosses as a handle, behind which
the other side sets a proxy. The two sides take turns: one waits for an answer and serves requests
meanwhile (a callback), so each message is a request or the answer to the latest one.

What a proxy cannot do: a list or dict crosses as a copy, so changing it does not change the original; a
class of the other side cannot be subclassed; `inspect`, `vars`, `copy` and pickling see the proxy only.

The tests' side is the one that must not be fooled. There, operators of an object of the candidate's (``==``,
``<``, ``+``, ``in``, ``bool``, hash) are used only if its class is one that the problem defines, and it is
never equal or ordered to a plain value. What it makes of a plain value is an object again, without a size or
a truth. Otherwise an object that claims to equal everything, and whose difference from anything is 0.0, would
pass most tests of a function. It suppresses no exception, and ends no iteration but its own.

The candidate may name only objects that the tests handed to it, or that their functions returned to it, and
never a class.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any

from art_gym.envs.coding.drivers.codec import decode, encode

_COMPARING = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__")
"""Not ``__ne__``: here it is what Python makes of ``__eq__``, so that nothing is both equal and unequal."""
_ARITHMETIC = "add sub mul truediv floordiv mod pow lshift rshift and or xor matmul".split()
_IN_PLACE = tuple(f"__i{name}__" for name in _ARITHMETIC)
_CALCULATING = (
    *(f"__{prefix}{name}__" for name in (*_ARITHMETIC, "divmod") for prefix in ("", "r")),
    *_IN_PLACE,
)
CHANGING = (*_IN_PLACE, "__setitem__", "__delitem__")
_MEASURING = tuple(
    "__bool__ __len__ __neg__ __pos__ __abs__ __invert__ __int__ __float__ __index__ __round__ __trunc__"
    " __floor__ __ceil__".split()
)
OPERATORS = (
    *_COMPARING,
    *_CALCULATING,
    *_MEASURING,
    *CHANGING[-2:],
    *"__hash__ __contains__ __reversed__ __format__".split(),
)
"""Forwarded only for objects of a known class."""
HARMLESS = tuple("__iter__ __next__ __len__ __getitem__ __call__ __str__ __repr__ __enter__ __exit__".split())
"""Forwarded for any object: the result is a value, or another proxied object."""
PLAIN = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)
"""With the built-in exceptions, the only classes that cross as themselves."""


class PeerGoneError(RuntimeError):
    """The other side has ended, or sent an invalid message."""


class Remote:
    """The base of every proxy of an object."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _peer(self).request("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _peer(self).request("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        _peer(self).request("delete", self, name)


class RemoteClass(type):
    """The type of every proxy of a class; calling it makes an object on the other side."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object on the other side."""
        return _peer(cls).request("call", cls, args, kwargs)

    __getattr__ = Remote.__getattr__
    __setattr__ = Remote.__setattr__


def _peer(proxy: Any) -> Peer:
    peer: Peer = type.__getattribute__(proxy if isinstance(proxy, type) else type(proxy), "_peer")
    return peer


class Peer:
    """One side of the conversation.

    Args:
        read: Waits for a frame; ``EOFError`` when there will be none.
        write: Sends a frame.
        allows: Whether the other side may do this (``get``, ``set``, ``delete``, ``call``, ``special``) to
            this object, by this name.
        sends: Whether this object may be handed to the other side.
        trusting: Whether the other side may use every object of this one, and operators of all its classes
            may be used here.

    Attributes:
        caught: The assertions that failed here while the other side was served, which may have caught them.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        write: Callable[[bytes], None],
        *,
        allows: Callable[[str, Any, str], bool] = lambda what, target, name: True,
        sends: Callable[[Any], bool] = lambda value: True,
        trusting: bool = True,
    ) -> None:
        self._read, self._write, self._allows, self._sends = read, write, allows, sends
        self._trusting = trusting
        self.caught: list[BaseException] = []
        self._count = 0
        self._mine: list[Any] = []  # what was handed over, by number; kept, so that ids stay theirs
        self._numbers: dict[int, int] = {}
        self._proxies: dict[int, Any] = {}
        self._proxy_numbers: dict[int, int] = {}
        self._known: set[int] = set()
        self._mixed: set[int] = set()  # proxies of what an object made of a plain value
        self._thrown: dict[int, BaseException] = {}  # the latest exception of a class that was handed over
        self._first: Callable[[], Any] | None = None

    # --- asking -----------------------------------------------------------------------------------------

    def request(self, what: str, *operands: Any) -> Any:
        """Ask the other side, serve it until it answers, and return the answer.

        Raises:
            BaseException: What the other side raised.
            PeerGoneError: If there is no answer, or none that makes sense.
        """
        self._count += 1
        number = self._count
        self._send("ask", number, what, *operands)
        while True:
            message = self._receive()
            if message[0] == "ask":
                self._serve(message)
            elif message[0] == "return" and message[1] == number:
                return message[2]
            elif message[0] == "raise" and message[1] == number:
                error = self._exception(message)
                ends = isinstance(error, StopIteration) and operands[1:2] != ("__next__",)
                if ends and not self._trusting:  # it would end an iteration of the tests
                    raise RuntimeError("StopIteration was raised outside of an iterator")
                raise error
            else:
                raise PeerGoneError("the other side answered out of turn")

    def serve_until_gone(self) -> None:
        """Serve until the other side has gone."""
        while True:
            try:
                message = self._receive()
            except EOFError:
                return
            if message[0] == "ask":
                self._serve(message)

    def offer(self, make: Callable[[], Any]) -> None:
        """Make what `make` returns the first object, which the other side can have by `accept`."""
        self._first = make

    def accept(self) -> Any:
        """The object that the other side offers.

        Raises:
            Exception: What its making raised there.
        """
        return self.request("first", None)

    def know(self, cls: Any) -> None:
        """Let objects of this proxied class, and of its subclasses, be used with operators."""
        if isinstance(cls, RemoteClass):
            self._known.add(id(cls))
            _add_specials(cls, OPERATORS)

    # --- messages ---------------------------------------------------------------------------------------

    def _send(self, *message: Any) -> None:
        self._write(json.dumps(encode(message, self._export)).encode())

    def _receive(self) -> tuple[Any, ...]:
        try:
            message = decode(json.loads(self._read()), self._import)
        except (ValueError, TypeError, RecursionError) as error:
            raise PeerGoneError(f"the other side sent no message: {error}") from None
        if type(message) is not tuple or len(message) < 3 or type(message[0]) is not str:
            raise PeerGoneError("the other side sent no message")
        return message

    def _serve(self, message: tuple[Any, ...]) -> None:
        number = message[1]
        try:
            answer: tuple[Any, ...] = ("return", number, self._carry_out(*message[2:]))
            tokens = encode(answer, self._export)
        except PeerGoneError:
            raise
        except BaseException as error:  # whatever is raised is carried to the other side
            tokens = encode(("raise", number, *self._description(error)), self._export)
        self._write(json.dumps(tokens).encode())

    def use(self, target: Any, name: str, operands: tuple[Any, ...]) -> Any:
        """Use an operator of the other side's object."""
        plain = bool(operands) and not isinstance(operands[0], Remote)
        if plain and name in _COMPARING:
            return NotImplemented
        if not self._trusting and name in _MEASURING and id(target) in self._mixed:
            raise TypeError(f"no {name} of what an object made of a plain value")
        answer = self.request("special", target, name, operands)
        if self._trusting:
            return answer
        if plain and name in _CALCULATING and answer is not NotImplemented and "pow" not in name:
            if not isinstance(answer, Remote):
                raise TypeError(f"{name} of an object and a plain value must give an object")
            self._mixed.add(id(answer))
        return None if name == "__exit__" else answer

    def _carry_out(self, what: Any = "", target: Any = None, name: Any = "", *rest: Any) -> Any:
        if what == "first" and self._first is not None:
            return self._first()
        if not self._trusting and id(target) not in self._numbers:
            raise PermissionError("only what was handed over can be used")
        if what == "describe":
            return _describe(target)
        shown = "__call__" if what == "call" else str(name)
        if not self._allows(what, target, shown):
            # The former is what `hasattr` expects.
            raise (AttributeError if what == "get" else PermissionError)(f"no `{what}` of `{shown}` here")
        if what == "get":
            return getattr(target, name)
        if what == "set":
            return setattr(target, name, rest[0])
        if what == "delete":
            return delattr(target, name)
        if what == "call":
            return target(*name, **rest[0])
        if what == "special" and name in (*HARMLESS, *OPERATORS):
            return _special(target, name)(*rest[0])
        raise TypeError(f"no request `{what}`")

    # --- objects ----------------------------------------------------------------------------------------

    def _export(self, value: Any) -> str:
        """The token of an object.

        ``o<``: one of the other side's; ``o>``: one of ours, and its class; ``oc``: a class of ours;
        ``ob``: a built-in class.
        """
        if id(value) in self._proxy_numbers:
            return f"o<{self._proxy_numbers[id(value)]}"
        if isinstance(value, type):
            return f"ob{value.__name__}" if _crosses(value) else f"oc{self._number(value)}"
        if not self._sends(value):
            raise TypeError(f"an object of type {type(value).__name__} cannot be handed over")
        return f"o>{self._number(value)} {self._number(type(value))}"

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._mine)
            self._mine.append(value)
        return self._numbers[id(value)]

    def _import(self, text: str) -> Any:
        """The object that a token stands for: our own, or a proxy, one and the same for one object."""
        letter, rest = text[:1], text[1:]
        if letter == "b":
            kind = getattr(builtins, rest, None)
            if _crosses(kind):
                return kind
            raise ValueError("no built-in type that crosses")
        if letter == "<":
            if not (rest.isascii() and rest.isdigit() and int(rest) < len(self._mine)):
                raise ValueError("a handle that was never given")
            return self._mine[int(rest)]
        if letter == "c":
            return self._class(int(rest))
        number, _, of = rest.partition(" ")
        proxy = self._proxies.get(int(number))
        if proxy is None:
            kind = self._class(int(of))
            proxy = kind.__new__(kind) if issubclass(kind, BaseException) else object.__new__(kind)
            self._keep(int(number), proxy)
        return proxy

    def _keep(self, number: int, proxy: Any) -> None:
        if number in self._proxies:
            raise ValueError("a number for two objects")
        self._proxies[number] = proxy
        self._proxy_numbers[id(proxy)] = number

    def _class(self, number: int) -> Any:
        """The proxy of a class: for an exception a class of our own that can be raised and caught."""
        if number in self._proxies:
            return self._proxies[number]
        # A stand-in carries the request, as there is no proxy yet.
        stand_in = object.__new__(Remote)
        self._proxy_numbers[id(stand_in)] = number
        try:
            name, bases, specials, is_exception = self.request("describe", stand_in)
        finally:
            del self._proxy_numbers[id(stand_in)]
        if is_exception:
            above = tuple(base for base in bases if self._is_exception(base))
            made: Any = type(str(name), above or (Exception,), {"__str__": _carried_text})
        else:
            made = self._proxy_class(str(name), bases, specials)
        self._keep(number, made)
        return made

    def _proxy_class(self, name: str, bases: tuple[Any, ...], specials: tuple[str, ...]) -> Any:
        parents = tuple(base for base in bases if isinstance(base, RemoteClass)) or (Remote,)
        made = type.__new__(RemoteClass, name, parents, {"_peer": self, "_specials": tuple(specials)})
        _add_specials(made, HARMLESS)
        if self._trusting or any(id(parent) in self._known for parent in parents):
            self.know(made)
        return made

    # --- exceptions -------------------------------------------------------------------------------------

    def _is_exception(self, kind: Any) -> bool:
        """Whether this is a class of exceptions, built in or standing for one of the other side."""
        known = self._trusting or _crosses(kind) or id(kind) in self._proxy_numbers
        return known and isinstance(kind, type) and issubclass(kind, Exception)

    def _description(self, error: BaseException) -> tuple[Any, ...]:
        """An exception as its class, arguments, text and what plain attributes it has."""
        if not self._trusting:
            self._thrown[id(type(error))] = error
            if isinstance(error, AssertionError) and "_text" not in vars(error):  # one that failed here
                self.caught.append(error)
                return AssertionError, (), "", {}
        plain = (type(None), bool, int, float, str)
        attributes = {k: v for k, v in vars(error).items() if type(k) is str and type(v) in plain}
        args = []
        for value in error.args:
            try:
                encode(value, self._export)
                args.append(value)
            except (TypeError, ValueError):
                args.append(f"<{type(value).__name__}>")
        return type(error), tuple(args), _text(error), attributes

    def _exception(self, message: tuple[Any, ...]) -> BaseException:
        """The other side's exception as one that can be raised here."""
        try:
            kind, args, text, attributes = message[2:]
        except ValueError:
            raise PeerGoneError("the other side sent no message") from None
        # What ends a program or a test run on the other side must not end this one.
        if not self._is_exception(kind):
            if isinstance(thrown := self._thrown.get(id(kind)), Exception):
                return thrown
            return RuntimeError(f"{getattr(kind, '__name__', 'BaseException')}: {text}")
        error: BaseException = kind.__new__(kind, *args)
        error.args = tuple(args)
        vars(error).update({"_text": text, **attributes})
        return error


def _crosses(kind: Any) -> bool:
    """Whether a class crosses as itself: it is one of `PLAIN`, or a built-in exception."""
    if not isinstance(kind, type):
        return False
    return kind in PLAIN or (issubclass(kind, BaseException) and vars(builtins).get(kind.__name__) is kind)


def _carried_text(error: BaseException) -> str:
    return str(vars(error).get("_text", "")) or Exception.__str__(error)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as raised:  # the candidate's own `__str__`
        return f"an exception that cannot be shown ({type(raised).__name__})"


def _describe(cls: Any) -> tuple[Any, ...]:
    """A class's name, bases, operators it defines itself, and whether it is an exception."""
    if not isinstance(cls, type):
        raise TypeError("only a class can be described")
    bases = tuple(base for base in cls.__bases__ if base is not object)
    specials = [name for name in (*HARMLESS, *OPERATORS) if _defines(cls, name)]
    return cls.__name__, bases, tuple(specials), issubclass(cls, BaseException)


def _defines(cls: type, name: str) -> bool:
    # Not by `getattr`, which would also find what the metaclass defines.
    found = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    return bool(found) and found[0] is not None and found[0] is not vars(object).get(name)


def _special(target: Any, name: str) -> Any:
    """An operator of an object as Python itself finds it: on its class, bound."""
    for base in type(target).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            return found.__get__(target, type(target)) if hasattr(type(found), "__get__") else found
    raise AttributeError(f"{type(target).__name__} has no {name}")


def _add_specials(cls: Any, allowed: tuple[str, ...]) -> None:
    """Give a proxied class those of the allowed operators that the class itself has."""
    specials = type.__getattribute__(cls, "_specials")
    for name in specials:
        if name in allowed:
            type.__setattr__(cls, name, _forwarder(name))
    if "__eq__" in allowed and "__eq__" in specials and "__hash__" not in specials:
        type.__setattr__(cls, "__hash__", None)


def _forwarder(name: str) -> Callable[..., Any]:
    if name == "__call__":

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _peer(self).request("call", self, args, kwargs)

        return call

    def special(self: Any, *args: Any) -> Any:
        return _peer(self).use(self, name, args)

    return special
