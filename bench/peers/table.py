"""The document as text: for every shape a line a contender, at the end one line a shape."""

from __future__ import annotations

import math

Result = dict

HEADER = ["", "best us", "median", "% of", "x ours", "max error", "from ours", "first us",
          "good/slow/disturbed", "form"]
LEFT = (0, len(HEADER) - 1)

COLUMNS = {"packaged": "OpenBLAS as packaged", "fastest": "OpenBLAS, fastest core"}


def ratio(result: Result, ours: list[Result]) -> tuple[float | None, bool]:
    """(how many times as long as our fastest, True in the slow state); states never meet."""
    for key in ("best_us", "slow_best_us"):
        rivals = [rival[key] for rival in ours if key in rival]
        if key in result and rivals:
            return result[key] / min(rivals), key == "slow_best_us"
    return None, False


def number(value: float | None) -> str:
    """1234567.8 -> "1234568", 0.15123 -> "0.151"."""
    if value is None:
        return "-"
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 10 else 3
    return f"{value:.{digits}f}"


def stated(text: str, slow: bool) -> str:
    """Figures of the slow state are in parentheses."""
    return f"({text})" if slow else text


def time_text(result: Result, key: str) -> str:
    if key in result:
        return number(result[key])
    slow = result.get(f"slow_{key}")
    return "-" if slow is None else stated(number(slow), True)


def times(result: Result, ours: list[Result]) -> str:
    value, slow = ratio(result, ours)
    return "-" if value is None else stated(f"{value:.2f}", slow)


def share(result: Result) -> str:
    slow = "percent_of_limit" not in result
    value = result.get("slow_percent_of_limit" if slow else "percent_of_limit")
    return "-" if value is None else stated(f"{value:.1f}", slow) + f" {result['limit']}"


def who(result: Result) -> str:
    if result["subject"] == "attngen":
        return f"attngen {result['isa']} {result['compiler']}"
    core = f" {result['core']}" if "core" in result else ""
    settings = f" ({', '.join(result['settings'])})" if "settings" in result else ""
    return result["label"] + core + settings


def error_text(result: Result, key: str) -> str:
    return f"{result[key]:.1e}" if key in result else "-"


def cells(result: Result, ours: list[Result]) -> list[str]:
    return [who(result), time_text(result, "best_us"), time_text(result, "median_us"),
            share(result), times(result, ours), error_text(result, "max_error"),
            error_text(result, "difference"), number(result["first_call_us"]),
            "/".join(str(result[f"{state}_samples"]) for state in ("good", "slow", "disturbed")),
            result.get("form", "")]


def align(rows: list[list[str]], left: tuple[int, ...]) -> list[str]:
    """Rows of text in columns; all but `left` are flush right."""
    widths = [max(len(line[at]) for line in rows) for at in range(len(rows[0]))]
    return ["  " + "  ".join(
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in rows]


def split(shape: dict) -> tuple[list[Result], list[Result]]:
    """(timed results, those of them that are ours)."""
    timed = [result for result in shape["results"] if "failure" not in result]
    return timed, [result for result in timed if result["subject"] == "attngen"]


def shape_text(shape: dict) -> str:
    if "refused" in shape:
        return f"\n{shape['id']}: refused: {shape['refused']}"
    timed, ours = split(shape)
    lines = ["", shape["id"]]
    if timed:
        lines += align([HEADER, *(cells(result, ours) for result in timed)], LEFT)
    for result in shape["results"]:
        if "failure" in result:
            failure = result["failure"]
            lines.append(f"  {who(result)}: {failure['kind']}: {failure['message']}")
        lines += [f"  {who(result)}: {note}" for note in result.get("notes", ())
                  if "wrong by" in note]
    return "\n".join(lines)


def columns_of(result: Result) -> list[str]:
    """The columns of the summary that a result stands in: the packaged OpenBLAS may also be the one
    with the fastest core."""
    if result["subject"] == "openblas":
        return [COLUMNS[setting] for setting in result["settings"] if setting in COLUMNS]
    return [who_short(result)]


def by_column(shape: dict) -> dict[str, Result]:
    return {column: result for result in split(shape)[0] if result["subject"] != "attngen"
            for column in columns_of(result)}


def summary_row(shape: dict, columns: list[str]) -> list[str]:
    _, ours = split(shape)
    others = by_column(shape)
    known = {column: ratio(result, ours)[0] for column, result in others.items()}
    known = {column: value for column, value in known.items() if value is not None}
    first = min(known, key=known.get, default=None)
    best = [result for result in ours if "best_us" in result] or ours
    fastest = min(best, key=lambda one: one.get("best_us", one.get("slow_best_us", math.inf)),
                  default={})
    return [shape["id"], time_text(fastest, "best_us"),
            *(times(others[column], ours) if column in others else "-" for column in columns),
            f"{first} {known[first]:.2f}" if first else "-"]


def summary_text(shapes: list[dict]) -> str:
    """How many times as long as our fastest kernel every other one takes."""
    columns = list(dict.fromkeys(column for shape in shapes for column in by_column(shape)))
    rows = [["", "ours us", *columns, "fastest other"]]
    rows += [summary_row(shape, columns) for shape in shapes]
    return "\n".join(["", "Time as a multiple of ours (above 1: ours is faster; in parentheses: "
                      "the machine's slow state)", *align(rows, (0, len(rows[0]) - 1))])


def who_short(result: Result) -> str:
    """The label without its version."""
    words = result["label"].split(" ")
    while len(words) > 1 and words[-1][:1].isdigit():
        words.pop()
    return " ".join(words)


def libraries_text(shapes: list[dict]) -> str:
    """What every BLAS says of itself, and what a call costs the others by itself, once."""
    results = [result for shape in shapes for result in split(shape)[0]]
    lines = list(dict.fromkeys(result["blas_library"] for result in results
                               if "blas_library" in result))
    calls = {who_short(result): f"{who_short(result)} {number(result['empty_call_us'])}"
             for result in results if "empty_call_us" in result}
    if calls:
        lines.append("us of a call with nothing to do: " + ", ".join(calls.values()))
    return "\n".join(["", *(f"  {line}" for line in lines)]) if lines else ""
