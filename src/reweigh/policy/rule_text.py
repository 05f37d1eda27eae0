"""The text of a rule, and its grammar.

    rule        = branches | outcome
    branches    = "if" any ":" outcome { [";"] "elif" any ":" outcome } [ [";"] "else" ":" outcome ]
    outcome     = action "=" share { ("," | new line) action "=" share }
    any         = all { "or" all }
    all         = negation { "and" negation }
    negation    = "not" negation | "(" any ")" | comparison
    comparison  = term sign term { sign term }          at least one term is a column
                | column ["not"] "in" "(" value { "," value } ")"
                | column "is" ["not"] "missing"
    sign        = "<" | "<=" | ">" | ">=" | "==" | "!="
    term        = column | value
    value       = number | text | "true" | "false"      true and false are 1 and 0
    action      = name | text | whole number
    share       = number [ "/" number ]

Blanks, new lines and comments (# to the end of the line) separate. A column or an action is written
as it is where it consists of letters, digits, _ and dots; other columns stand in `backticks`, other
actions and all texts in quotes. A quote inside is doubled. Nothing of a text is ever executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from reweigh.errors import UsageError, nearest, text_fault
from reweigh.log.states import Label

Kind = Literal["number", "text", "any"]  # any: the rule only tests whether a cell is missing
LONGEST = 100_000  # characters
DEEPEST = 50  # parentheses and "not" inside each other
RESERVED = ("if", "elif", "else", "and", "or", "not", "in", "is", "true", "false")
SIGNS = ("<", "<=", ">", ">=", "==", "!=")
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
OF_OTHERS = {
    "&": "and", "&&": "and", "|": "or", "||": "or", "!": "not", "≤": "<=", "≥": ">=", "≠": "!=",
    "<>": "!=", "=>": ">=", "=<": "<=",
}  # fmt: skip
TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[^\W\d]\w*(?:\.\w+)*)
    |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<foreign>&&?|\|\|?|<>|=>|=<|!(?!=)|[≤≥≠])
    |(?P<sign><=|>=|==|!=|[<>=:;,()/+-])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Compared:
    """A column beside one value ("<", …, "!="), or among several ("in")."""

    column: str
    sign: str
    values: tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True)
class IsMissing:
    column: str


@dataclass(frozen=True)
class Not:
    part: Condition


@dataclass(frozen=True)
class Joined:
    """All of the parts hold, or any of them."""

    every: bool
    parts: tuple[Condition, ...]


Condition = Compared | IsMissing | Not | Joined


@dataclass(frozen=True)
class Branch:
    """Where the condition holds (None: always), these actions with these probabilities."""

    condition: Condition | None
    probabilities: dict[Label, float]
    name: str  # for messages: "branch 2 (line 3)"
    place: int  # in the text


@dataclass(frozen=True)
class Token:
    kind: str
    text: str  # without its quotes
    place: int
    line: int


@dataclass(frozen=True, eq=False)
class RuleText:
    """A text with its parts. `columns` are those that it names, with their kind and where each
    stands first; `actions` likewise; `plain` is the text without blanks and comments."""

    text: str
    where: str
    branches: tuple[Branch, ...]
    columns: dict[str, tuple[Kind, int]]
    actions: dict[Label, int]
    plain: str

    def fail(self, place: int, message: str) -> NoReturn:
        raise text_fault(self.text, self.where, place, message)


def parse(text: str, where: str = "the rule") -> RuleText:
    """The parts of a rule; UsageError with line, column and a caret where it is none."""
    if len(text) > LONGEST:
        raise UsageError(f"{where} has {len(text):,} characters; at most {LONGEST:,} are read")
    parser = _Parser(text, where, _tokens(text, where))
    branches = parser.rule()
    plain = " ".join(f"{token.kind}:{token.text}" for token in parser.tokens)
    return RuleText(text, where, branches, parser.columns, parser.actions, plain)


def _tokens(text: str, where: str) -> list[Token]:
    tokens: list[Token] = []
    place, line = 0, 1
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise text_fault(text, where, place, _unknown(text[place]))
        kind, text_of_token = str(match.lastgroup), match.group()
        if kind == "foreign":
            raise text_fault(
                text,
                where,
                place,
                f"write {OF_OTHERS[text_of_token]!r} instead of {text_of_token!r}",
            )
        if kind != "blank":
            if kind in ("text", "quoted"):
                text_of_token = text_of_token[1:-1].replace(text_of_token[0] * 2, text_of_token[0])
            elif kind == "name" and text_of_token in RESERVED:
                kind = "word"
            tokens.append(Token(kind, text_of_token, place, line))
        line += text.count("\n", place, match.end())
        place = match.end()
    return tokens


def _unknown(character: str) -> str:
    if character in "'\"`":
        return f"the quote {character} is never closed"
    return (
        f"the character {character!r} means nothing here; a column with such a name stands in "
        "`backticks`, an action in quotes"
    )


@dataclass
class _Parser:
    text: str
    where: str
    tokens: list[Token]
    at: int = 0
    depth: int = 0
    columns: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    actions: dict[Label, int] = field(default_factory=dict)

    # ---- tokens --------------------------------------------------------------------------------

    @property
    def here(self) -> Token:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return Token("end", "the end", len(self.text), self.text.count("\n") + 1)

    def sees(self, *texts: str, ahead: int = 0) -> bool:
        at = self.at + ahead
        if at >= len(self.tokens):
            return False
        token = self.tokens[at]
        return token.kind in ("sign", "word") and token.text in texts

    def take(self) -> Token:
        token = self.here
        self.at += 1
        return token

    def takes(self, *texts: str) -> bool:
        seen = self.sees(*texts)
        self.at += seen
        return seen

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        raise text_fault(self.text, self.where, (token or self.here).place, message)

    def expect(self, text: str, after: str) -> None:
        if not self.takes(text):
            self.fail(f"{text!r} belongs {after}, not {_spelled(self.here)}")

    # ---- branches ------------------------------------------------------------------------------

    def rule(self) -> tuple[Branch, ...]:
        if not self.tokens:
            self.fail("the rule is empty; write if COLUMN < 65: ACTION=0.9, OTHER=0.1; else: …")
        branches: list[Branch] = []
        if not self.sees(*RESERVED):
            branches.append(self.branch(None, self.here, 1))
        while self.sees("if", "elif", "else"):
            branches.append(self.next_branch(branches))
            while self.takes(";"):
                pass
        if self.here.kind != "end":
            self.fail(self._leftover(bool(branches)))
        return tuple(branches)

    def next_branch(self, before: list[Branch]) -> Branch:
        token = self.take()
        first = not before
        if not first and before[-1].condition is None:
            self.fail("no branch can follow the one that holds always", token)
        if first and token.text != "if":
            self.fail(f"a rule begins with 'if', not {token.text!r}", token)
        if not first and token.text == "if":
            self.fail("further branches begin with 'elif' or 'else'", token)
        if token.text == "else" and self.sees("if"):
            self.fail("write 'elif' for 'else if'", token)
        condition = None if token.text == "else" else self.any()
        self.expect(":", "after 'else'" if condition is None else "after the condition")
        return self.branch(condition, token, len(before) + 1)

    def branch(self, condition: Condition | None, token: Token, number: int) -> Branch:
        """The actions of a branch with their probabilities, which add up to 1."""
        probabilities: dict[Label, float] = {}
        before = self.here
        while True:
            action, share = self.share()
            if action in probabilities:
                self.fail(f"the action {action!r} stands twice in this branch", before)
            probabilities[action] = share
            if not self.takes(","):
                starts_line = self.here.line > self.tokens[self.at - 1].line
                if not (starts_line and self.here.kind in ("name", "text", "number", "quoted")):
                    break
            before = self.here
        return Branch(condition, probabilities, f"branch {number} (line {token.line})", token.place)

    def share(self) -> tuple[Label, float]:
        token = self.here
        action = self.action()
        if not self.takes("="):
            if self.sees("=="):
                self.fail("write = for the probability of an action; == compares")
            self.fail(
                f"'=' and a probability belong after the action {action!r}, not "
                f"{_spelled(self.here)}{_quote_hint(self.here, token)}"
            )
        value, place = self.number("a probability"), self.tokens[self.at - 1]
        if self.takes("/"):
            divisor = self.number("a number")
            if divisor == 0:
                self.fail("no number is divided by 0", self.tokens[self.at - 1])
            value /= divisor
        if not 0 <= value <= 1:
            self.fail(f"a probability lies between 0 and 1; got {value:.10g}", place)
        self.actions.setdefault(action, token.place)
        return action, value

    def action(self) -> Label:
        negative = self.takes("-")
        token = self.take()
        if token.kind == "number":
            if not token.text.isdigit() or len(token.text) > 18:
                self.fail(f"an action is a name or a whole number; got {token.text}", token)
            return -int(token.text) if negative else int(token.text)
        if negative or token.kind not in ("name", "text"):
            hint = "; a name that is a word of the rule stands in quotes"
            reserved = token.kind == "word"
            self.fail(f"an action belongs here, not {_spelled(token)}{hint * reserved}", token)
        return token.text

    def number(self, what: str) -> float:
        factor = -1.0 if self.takes("-") else 1.0
        if factor > 0:
            self.takes("+")
        token = self.take()
        if token.kind != "number":
            self.fail(f"{what} belongs here, not {_spelled(token)}", token)
        value = float(token.text)
        if not math.isfinite(value):
            self.fail(f"the number {token.text} is too large", token)
        return factor * value

    def _leftover(self, after_branch: bool) -> str:
        token = self.here
        if not after_branch:
            return f"a rule begins with 'if' or with an action, not {_spelled(token)}"
        close = nearest(token.text, ("elif", "else")) if token.kind == "name" else ""
        return (
            f"',', ';', 'elif' or 'else' belongs here, not {_spelled(token)}{close}"
            f"{_quote_hint(token, self.tokens[self.at - 1])}"
        )

    # ---- conditions ----------------------------------------------------------------------------

    def any(self) -> Condition:
        return self._joined("or", self.all)

    def all(self) -> Condition:
        return self._joined("and", self.negation)

    def _joined(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self.takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(word == "and", tuple(parts))

    def negation(self) -> Condition:
        if not self.sees("not", "("):
            return self.comparison()
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"more than {DEEPEST} parentheses or 'not' stand inside each other")
        if self.takes("not"):
            condition: Condition = Not(self.negation())
        else:
            self.take()
            condition = self.any()
            self.expect(")", "at the end of the parentheses")
        self.depth -= 1
        return condition

    def comparison(self) -> Condition:
        left = self.term()
        if self.sees("is"):
            return self.missing(left)
        if self.sees("in") or (self.sees("not") and self.sees("in", ahead=1)):
            return self.among(left)
        parts: list[Condition] = []
        while self.sees(*SIGNS):
            sign, right = self.take(), self.term()
            parts.append(self.compared(left, sign, right))
            left = right
        if self.sees("="):
            self.fail("write == to compare; = gives a probability")
        if not parts:
            here = self.here
            self.fail(
                "a condition compares a column, as in age < 65: '<', '<=', '>', '>=', '==', '!=', "
                f"'in' or 'is missing' belongs here, not {_spelled(here)}"
                f"{nearest(here.text, RESERVED) if here.kind == 'name' else ''}"
            )
        return parts[0] if len(parts) == 1 else Joined(True, tuple(parts))

    def term(self) -> Token:
        """A column or a value; of a number with its sign."""
        negative, place = self.takes("-"), self.here
        token = self.take()
        if negative and token.kind != "number":
            self.fail(f"a number belongs after '-', not {_spelled(token)}", token)
        if token.kind == "number":
            number = float(token.text)
            if not math.isfinite(number):
                self.fail(f"the number {token.text} is too large", token)
            return Token("number", f"{'-' * negative}{token.text}", place.place, token.line)
        if token.kind == "word" and token.text in ("true", "false"):
            return Token("number", "1" if token.text == "true" else "0", token.place, token.line)
        if token.kind not in ("name", "quoted", "text"):
            self.fail(f"a column, a number or a text belongs here, not {_spelled(token)}", token)
        return token

    def compared(self, left: Token, sign: Token, right: Token) -> Condition:
        columns = [token.kind in ("name", "quoted") for token in (left, right)]
        if all(columns):
            hint = f" (a text stands in quotes: '{right.text}')" if right.kind == "name" else ""
            message = "a column is compared with a number or a text, not with a column"
            self.fail(f"{message}{hint}", right)
        if not any(columns):
            self.fail("one side of a comparison must be a column", left)
        column, value = (left, right) if columns[0] else (right, left)
        if value.kind == "text" and sign.text not in ("==", "!="):
            self.fail(f"texts are compared by ==, != and in, not by {sign.text}", sign)
        spelled = sign.text if columns[0] else FLIPPED[sign.text]
        if self._kind(column, value) == "text":
            return Compared(column.text, spelled, (value.text,))
        return Compared(column.text, spelled, (float(value.text),))

    def among(self, column: Token) -> Condition:
        self._require_column(column, "in")
        negated = self.takes("not")
        self.take()
        self.expect("(", "after 'in'")
        values = [self.term()]
        while self.takes(",") and not self.sees(")"):
            values.append(self.term())
        self.expect(")", "at the end of the list")
        for value in values:
            if value.kind in ("name", "quoted"):
                self.fail(f"a text stands in quotes: '{value.text}'", value)
        words = tuple(value.text for value in values)
        are_texts = {self._kind(column, value) for value in values} == {"text"}
        condition = Compared(column.text, "in", words if are_texts else tuple(map(float, words)))
        return Not(condition) if negated else condition

    def missing(self, column: Token) -> Condition:
        self._require_column(column, "is missing")
        self.take()
        negated, token = self.takes("not"), self.take()
        if (token.kind, token.text) != ("name", "missing"):
            self.fail(f"'missing' belongs after 'is', not {_spelled(token)}", token)
        self.columns.setdefault(column.text, ("any", column.place))
        condition = IsMissing(column.text)
        return Not(condition) if negated else condition

    def _require_column(self, token: Token, word: str) -> None:
        if token.kind not in ("name", "quoted"):
            self.fail(f"a column belongs before {word!r}, not {_spelled(token)}", token)

    def _kind(self, column: Token, value: Token) -> Kind:
        """That of the value, which is that of all values of the column."""
        kind: Kind = "text" if value.kind == "text" else "number"
        known, place = self.columns.get(column.text, ("any", column.place))
        if known == "any":
            self.columns[column.text] = (kind, place)
        elif known != kind:
            self.fail(
                f"the column {column.text!r} is compared with a {kind} here and with a {known} "
                "before: its cells are one or the other",
                value,
            )
        return kind


def _spelled(token: Token) -> str:
    return "the end" if token.kind == "end" else repr(token.text)


def _quote_hint(token: Token, before: Token) -> str:
    """For gpt-4o and the like."""
    follows = token.kind == "name" and before.kind in ("name", "number")
    if follows or token.text in ("-", "/", "+"):
        return "; a name with other characters than letters, digits, _ and dots stands in quotes"
    return ""
