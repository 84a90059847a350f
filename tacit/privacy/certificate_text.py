"""A certificate as a page of plain text, for a person who must decide whether it is enough."""

from __future__ import annotations

import textwrap

from tacit.privacy.certificate import Json, in_full


def as_text(certificate: Json) -> str:
    """The certificate as a page that a reviewer can read."""
    title = [certificate["title"], "=" * len(certificate["title"]), ""]
    if certificate.get("no_guarantee_because"):
        lines = [certificate["verdict"], "", *title]
    else:
        lines = [*title, *textwrap.wrap(certificate["verdict"], 92), ""]
    if certificate.get("noise"):
        lines += [*textwrap.wrap(certificate["noise"], 92), ""]
    lines += _numerics_lines(certificate) + _three_numbers(certificate)
    for key, heading in _SECTIONS:
        value = certificate.get(key)
        if value:
            lines += ["", heading]
            for item in value if isinstance(value, list) else [str(value)]:
                lines += textwrap.wrap(
                    str(item), 90, initial_indent="  - ", subsequent_indent="    "
                )
    lines += ["", "Settings"]
    for key in _SETTINGS:
        if certificate.get(key) is not None:
            lines.append(f"  {key.replace('_', ' ')}: {_in_words(certificate[key])}")
    versions = ", ".join(f"{name} {value}" for name, value in certificate["versions"].items())
    lines += [f"  versions: {versions}", ""]
    lines += [f"Ledger ends with {certificate['ledger_head']}"]
    lines += [f"Weights (SHA-256) {certificate['weights_sha256'] or 'not released'}"]
    return "\n".join(lines) + "\n"


_SECTIONS = (
    ("independence", "Independence of records"),
    ("warnings", "Warnings"),
    ("released", "What is released"),
    ("sampling", "Sampling"),
    ("clipping", "Clipping"),
    ("treated_as_public", "Treated as public"),
    ("not_covered", "Not covered"),
    ("tuning", "Tuning"),
    ("randomness", "Randomness"),
    ("assumptions", "Assumptions"),
    ("proof", "Proof"),
)
_SETTINGS = (
    "method",
    "variant",
    "budget",
    "steps",
    "charges",
    "mechanism",
    "accounting",
    "test",
    "feedback",
    "expected_runs",
    "settings_to_try",
    "outcome",
    "noise_multiplier",
    "sensitivity_squared",
    "norm_groups",
    "mini_sets",
    "sampling_probability",
    "expected_batch_size",
    "records",
    "accountant",
)


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {each}" for name, each in value.items())
    return str(value)


def _numerics_lines(certificate: Json) -> list[str]:
    """Whether sums are proven as they are computed, among the first things to read."""
    numerics = certificate.get("numerics")
    if not numerics or not certificate["guarantee"]:
        return []
    because = f"; because {numerics['reason']}" if numerics.get("reason") else ""
    sentence = f"Sums {numerics['sums']}: {numerics['meaning']}{because}."
    return [*textwrap.wrap(sentence, 92), ""]


def _three_numbers(certificate: Json) -> list[str]:
    claimed, audited = certificate["claimed"], certificate["audited"]
    proven = [f"{in_full(value)} ({name})" for name, value in certificate["proven"].items()]
    guarantee = certificate["guarantee"]
    at_delta = f", at δ = {guarantee['delta']:g}" if guarantee else ""
    lines = [
        "claimed ε  "
        + (
            f"{claimed['epsilon']:.4f}, at δ = {claimed['delta']:g}"
            if claimed
            else "none: no paper's claim"
        ),
        "proven ε   " + (", ".join(proven) + at_delta if proven else "none: nothing is guaranteed"),
        "audited ε  "
        + (
            f"at least {audited['epsilon']:g} ({audited['relation']}), at δ = {audited['delta']:g},"
            f" {audited['confidence']:.0%} confidence"
            if audited
            else "not audited yet"
        ),
    ]
    if audited:
        lines += textwrap.wrap(
            f"audited: {audited['verdict']}", 90, initial_indent="  ", subsequent_indent="  "
        )
    if claimed:
        lines += textwrap.wrap(
            f"claimed: {claimed['source']}", 90, initial_indent="  ", subsequent_indent="  "
        )
    if certificate["spent_by_now"]:
        now = certificate["spent_by_now"]
        lines.append(f"  {now['name']}: {in_full(now['epsilon'])}")
    return lines + _stop_lines(certificate)


def _stop_lines(certificate: Json) -> list[str]:
    """An early stop saves time; the planned cost stays what is guaranteed, or claimed."""
    lines = []
    if certificate.get("head_only") is not None:
        lines.append(
            f"  the noised vectors alone, had the encoder not been trained: ε ="
            f" {in_full(certificate['head_only'])} (replace-features)"
        )
    stopped = certificate.get("stopped")
    if stopped:
        lines.append(f"  stopped early, after step {stopped['step']} of {certificate['steps']}")
        if stopped["claimed"] is not None:
            lines.append(f"  claimed for the steps taken until then: {stopped['claimed']:.4f}")
    return lines
