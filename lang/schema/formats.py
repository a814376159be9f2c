"""`format` → an exact pattern, so that no engine's reading of a format is trusted.

In: a format's name. Out: a Python regex for the whole string; None for a name that is no format (an annotation); False
for a format that no regular language describes well enough. Each pattern is a subset of what the specification and the
usual validators allow, and covers every ordinary spelling.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["FORMATS", "LENGTHS", "format_pattern"]

_YEAR = r"[0-9]{4}"
# Divisible by 4, but not by 100 unless by 400.
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
# Year 0 exists in RFC 3339 and not in Python's datetime, which typical validators use.
_DATE = _DATE.replace(_YEAR, "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})").replace(
    _LEAP,
    r"(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26]))|(?:0[48]|[2468][048]|[13579][26])00)",
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,18})?"
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# A leap second is 23:59:60 in UTC; only the spelling in UTC is written.
_LEAP_SECOND = r"23:59:60(?:\.[0-9]{1,18})?(?:[Zz]|\+00:00|-00:00)"
_TIME = rf"(?:{_CLOCK}{_ZONE}|{_LEAP_SECOND})"

_A = "[a-zA-Z0-9]"
_B = "[a-zA-Z0-9-]"
# At most 63 characters; no "--" in third and fourth place: those are encoded names, valid only where they decode.
_LABEL = rf"{_A}(?:{_A}|{_B}{_A}|{_B}{{2}}{_A}|{_B}(?:{_A}{_B}|-{_A}){_B}{{0,58}}{_A})?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    tail = rf"(?:{_H16}:{_H16}|{_IPV4})"
    ways = [rf"(?:{_H16}:){{6}}{tail}", rf"::(?:{_H16}:){{5}}{tail}"]
    for before in range(1, 6):
        head = rf"(?:{_H16}(?::{_H16}){{0,{before - 1}}})?"
        ways.append(rf"{head}::(?:{_H16}:){{{5 - before}}}{tail}")
    ways.append(rf"(?:{_H16}(?::{_H16}){{0,5}})?::{_H16}")
    ways.append(rf"(?:{_H16}(?::{_H16}){{0,6}})?::")
    return "(?:" + "|".join(ways) + ")"


_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_ATOM}{{1,64}}(?:\.{_ATOM}{{1,64}})*@{_HOST}"
_IDN_ATOM = rf"(?:{_ATOM}|[^\x00-\x7f])"
_IDN_EMAIL = rf"{_IDN_ATOM}+(?:\.{_IDN_ATOM}+)*@(?:[a-zA-Z0-9]|[^\x00-\x7f])+(?:[.-](?:[a-zA-Z0-9]|[^\x00-\x7f])+)*"

_UCS = "\U000000a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"\\U{plane:04x}0000-\\U{plane:04x}fffd" for plane in range(1, 15)
)
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*"
_FUTURE = r"[vV][0-9a-fA-F]+\.[a-zA-Z0-9._~!$&'()*+,;=:-]+"


def _uri(more: str, in_query: str) -> tuple[str, str]:
    """RFC 3986 (or 3987, with `more` characters): an absolute URI, and a relative reference."""

    def char(extra: str, beyond: str = "") -> str:
        return rf"(?:[a-zA-Z0-9._~!$&'()*+,;={extra}{more}{beyond}-]|%[0-9a-fA-F]{{2}})"

    part = char(":@")
    suffix = rf"(?:\?{char(':@/?', in_query)}*)?(?:#{char(':@/?')}*)?"
    authority = rf"(?:{char(':')}*@)?(?:\[(?:{_ipv6()}|{_FUTURE})\]|{char('')}*)(?::[0-9]*)?"
    network = rf"//{authority}(?:/{part}*)*"
    absolute = rf"/(?:{part}+(?:/{part}*)*)?"
    uri = rf"{_SCHEME}:(?:{network}|{absolute}|{part}+(?:/{part}*)*|){suffix}"
    return uri, rf"(?:{network}|{absolute}|{char('@')}+(?:/{part}*)*|){suffix}"


_URI, _RELATIVE = _uri("", "")
_IRI, _IRI_RELATIVE = _uri(_UCS, _PRIVATE)


def _duration() -> str:
    number = "[0-9]{1,9}"
    time = rf"T(?:{number}H(?:{number}M(?:{number}S)?)?|{number}M(?:{number}S)?|{number}S)"
    date = rf"(?:{number}Y(?:{number}M(?:{number}D)?)?|{number}M(?:{number}D)?|{number}D)"
    return rf"P(?:{date}(?:{time})?|{time}|{number}W)"


_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _duration(),
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ip-address": _IPV4,
    "host-name": _HOST,
    "ipv6": _ipv6(),
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "iri": _IRI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "iri-reference": rf"(?:{_IRI}|{_IRI_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}

_BEYOND = frozenset(["regex", "uri-template", "idn-hostname"])

LENGTHS = {"hostname": 253, "host-name": 253, "email": 254}
"""Most characters, where the pattern does not say."""


def format_pattern(name: str) -> str | Literal[False] | None:
    """The pattern of a format; None: not a format; False: a format that cannot be enforced."""
    if name in _BEYOND:
        return False
    return FORMATS.get(name)
