"""`format` → an exact pattern, so that no engine's reading of a format is trusted.

In: a format's name. Out: a Python regex for the whole string; None for a name that is no format (an annotation); False
for a format that no regular language describes well enough. Each pattern is a subset of what the specification and the
usual validators allow, and covers every ordinary spelling.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["FORMATS", "format_pattern"]

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
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# A leap second is 23:59:60 in UTC; only the spelling in UTC is written.
_LEAP_SECOND = r"23:59:60(?:\.[0-9]{1,9})?(?:[Zz]|\+00:00|-00:00)"
_TIME = rf"(?:{_CLOCK}{_ZONE}|{_LEAP_SECOND})"

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
# No "--" in third and fourth place (those are encoded names, valid only if they decode), 63 characters a label.
_PLAIN_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9]|(?:[a-zA-Z0-9]|-[a-zA-Z0-9]){1,30}[a-zA-Z0-9]?)?"
_HOST = rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL}){{0,3}}"
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
_EMAIL = rf"{_ATOM}{{1,64}}(?:\.{_ATOM}{{1,64}}){{0,3}}@{_HOST}"

_UNRESERVED = r"[a-zA-Z0-9._~!$&'()*+,;=:@-]"
_PCHAR = rf"(?:{_UNRESERVED}|%[0-9a-fA-F]{{2}})"
_SUFFIX = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_REG_NAME = r"(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*"
_USER = r"(?:(?:[a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?"
_AUTHORITY = rf"{_USER}(?:\[{_ipv6()}\]|{_REG_NAME})(?::[0-9]{{0,5}})?"
_ABSOLUTE = rf"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_ROOTLESS = rf"{_PCHAR}+(?:/{_PCHAR}*)*"
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*"
_URI = rf"{_SCHEME}:(?://{_AUTHORITY}(?:/{_PCHAR}*)*|{_ABSOLUTE}|{_ROOTLESS}|){_SUFFIX}"
_NO_COLON = r"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})"
_RELATIVE = rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|{_ABSOLUTE}|{_NO_COLON}+(?:/{_PCHAR}*)*|){_SUFFIX}"


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
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ip-address": _IPV4,
    "host-name": _HOST,
    "ipv6": _ipv6(),
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "iri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}

_BEYOND = frozenset(["regex", "uri-template", "color"])


def format_pattern(name: str) -> str | Literal[False] | None:
    """The pattern of a format; None: not a format; False: a format that cannot be enforced."""
    if name in _BEYOND:
        return False
    return FORMATS.get(name)
