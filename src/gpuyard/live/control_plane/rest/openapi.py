"""Generate the OpenAPI document and the page at /docs from the route table.

Schemas come from the types that the routes name, descriptions from the docstrings of those types and of their fields.
So the document describes the types that are actually decoded.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Struct

from gpuyard.live.control_plane.rest.legacy.errors import is_legacy
from gpuyard.live.control_plane.rest.legacy.messages import LegacyError
from gpuyard.live.control_plane.rest.route import Route
from gpuyard.live.wire.answers import ErrorAnswer

OpenApiDocument: TypeAlias = dict[str, Any]

_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_WHY = {
    400: "The request is wrong; the message says what to correct.",
    401: "The token is missing, wrong or revoked.",
    403: "The role of the user does not permit this.",
    404: "The object does not exist or belongs to another tenant.",
    409: "The request contradicts the current state.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    426: "The path is a WebSocket; ask for an upgrade.",
    429: "Too many requests at the same time; try again later.",
    503: "The scheduler accepts no changes now; try again.",
}


def openapi_document(routes: Sequence[Route], *, version: str, title: str = "gpuyard") -> OpenApiDocument:
    """Return the OpenAPI 3.1 document of these routes."""
    types = [type_ for route in routes for type_ in (route.request, route.answer) if type_ is not None]
    types += [route.other[1] for route in routes if route.other is not None]
    types += [ErrorAnswer, *([LegacyError] if any(is_legacy(route.path) for route in routes) else [])]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {id(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    for struct in _structs(types):
        _add_field_notes(components[struct.__name__], struct)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(route.path, {})
        assert route.method.lower() not in operations, f"{route.method} {route.path} is listed twice"
        operations[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    plain = _PATH_PARAMETER.sub(r"\1", route.path)
    name = re.sub(r"\W+", "_", f"{route.method.lower()}_{plain}").strip("_")
    operation: dict[str, Any] = {"operationId": name, "summary": route.summary}
    if route.section:
        operation["tags"] = [route.section]
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.request is not None:
        body: dict[str, Any] = {"schema": schema_of[id(route.request)]}
        if route.example is not None:
            body["example"] = dict(route.example)
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    if route.takes:
        binary = {route.takes: {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": binary}
    if route.status == 204:
        answer: dict[str, Any] = {"description": "Done."}
    elif route.answer is not None:
        answer = {"description": "Done.", "content": {"application/json": {"schema": schema_of[id(route.answer)]}}}
    else:
        answer = {"description": "Done.", "content": {route.media: {"schema": {"type": "string"}}}}
    error = {"application/json": {"schema": schema_of[id(LegacyError if is_legacy(route.path) else ErrorAnswer)]}}
    wrong = {str(status): {"description": _WHY[status], "content": error} for status in route.all_errors}
    operation["responses"] = {str(route.status): answer, **wrong}
    if route.other is not None:
        status, type_ = route.other
        schema = schema_of[id(type_)]
        if status == route.status and route.answer is not None:
            schema = {"anyOf": [schema_of[id(route.answer)], schema]}
        content = {**(answer["content"] if status == route.status else {}), "application/json": {"schema": schema}}
        operation["responses"][str(status)] = {"description": "Done, as a parameter asked.", "content": content}
    operation["security"] = [{"token": []}] if route.roles else []
    if route.roles:
        operation["description"] = f"For {', '.join(route.roles)}."
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PATH_PARAMETER.findall(route.path)
    ]
    for query in route.query:
        bounds = {"enum": list(query.values) or None, "minimum": query.least, "maximum": query.most}
        schema: dict[str, Any] = {
            "type": query.type,
            **{key: value for key, value in bounds.items() if value is not None},
        }
        found.append({"name": query.name, "in": "query", "description": query.words, "schema": schema})
    if route.idempotent:
        note = "A request that is repeated with the same key and body is executed only once."
        schema = {"type": "string", "minLength": 1, "maxLength": 255}
        found.append({"name": "Idempotency-Key", "in": "header", "description": note, "schema": schema})
    return found


# --- sentences from the source ------------------------------------------------------------------------------------------


def _structs(types: Sequence[Any]) -> list[type[Struct]]:
    """Return every Struct that these types refer to, directly or indirectly."""
    found: dict[type[Struct], None] = {}
    waiting = list(types)
    while waiting:
        type_ = waiting.pop()
        if get_origin(type_) is not None:
            waiting += get_args(type_)
        elif isinstance(type_, type) and issubclass(type_, Struct) and type_ not in found:
            found[type_] = None
            waiting += [field.type for field in msgspec.structs.fields(type_)]
    return list(found)


def _add_field_notes(schema: dict[str, Any], struct: type[Struct]) -> None:
    """Add the docstrings below the fields of a class as descriptions, if its source is available."""
    try:
        source = textwrap.dedent(inspect.getsource(struct))
    except OSError:
        return
    class_definition = ast.parse(source).body[0]
    assert isinstance(class_definition, ast.ClassDef)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    for statement, after in zip(class_definition.body, class_definition.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(note))):
                schema["properties"][names[name]]["description"] = " ".join(note.split())


# --- the page -----------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563eb }
@media (prefers-color-scheme: dark) { :root { --accent: #7aa2ff } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line) }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
code, pre { font-family: ui-monospace, monospace; font-size: .86em }
pre { background: var(--soft); padding: .7rem; border-radius: 6px; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line) }
.method { display: inline-block; min-width: 4.2rem; font-weight: 600; color: var(--accent) }
.quiet { opacity: .75 }
a { color: var(--accent) }
"""


def docs_page(document: OpenApiDocument, *, server: str = "http://127.0.0.1:8080") -> str:
    """Return the document as one self-contained HTML page: no network, no script."""
    info = document["info"]
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = (operation.get("tags") or ["API"])[0]
            sections.setdefault(section, []).append(_operation_html(method.upper(), path, operation, server))
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in sections.items())
    schemas = "".join(_schema_html(name, schema) for name, schema in document["components"]["schemas"].items())
    title = escape(f"{info['title']} {info['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>Every error has one shape: "
        '<code>{"error": {"code", "message", "field"}}</code>. '
        'The same as a file for programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"{body}<h2>Schemas</h2>{schemas}</body></html>\n"
    )


def _operation_html(method: str, path: str, operation: dict[str, Any], server: str) -> str:
    parts = [f"<p class=quiet>{escape(operation['description'])}</p>" if "description" in operation else ""]
    if parameters := operation.get("parameters"):
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code></td><td>{each['in']}</td>"
            f"<td>{escape(_kind(each['schema']))}</td><td>{escape(each.get('description', ''))}</td></tr>"
            for each in parameters
        )
        parts.append(f"<table><tr><th>Parameter<th>In<th>Type<th></tr>{rows}</table>")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        parts.append(f"<p>Body: {_linked(body['schema'])}</p>")
    rows = ""
    for status, response in operation["responses"].items():
        content = next(iter(response.get("content", {}).items()), None)
        what = "" if content is None else _linked(content[1]["schema"])
        kind = "" if content is None or content[0] == "application/json" else escape(content[0])
        rows += f"<tr><td>{status}</td><td>{escape(response['description'])}</td><td>{kind or what}</td></tr>"
    parts.append(f"<table><tr><th>Status<th>Means<th>Response</tr>{rows}</table>")
    parts.append(f"<pre>{escape(_curl(method, path, operation, body, server))}</pre>")
    return (
        f"<details><summary><span class=method>{method}</span> <code>{escape(path)}</code> "
        f"<span class=quiet>{escape(operation['summary'])}</span></summary>{''.join(parts)}</details>"
    )


def _curl(method: str, path: str, operation: dict[str, Any], body: dict[str, Any] | None, server: str) -> str:
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    words.append(f"'{server}{path}'")
    if operation.get("security"):
        words.append('-H "Authorization: Bearer $GPUYARD_TOKEN"')
    if body:
        example = json.dumps(body.get("example", {}), ensure_ascii=False).replace("'", r"'\''")
        words += ["-H 'Content-Type: application/json'", f"-d '{example}'"]
    return " ".join(words)


def _schema_html(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' <span class=quiet>optional</span>'}</td>"
        f"<td>{_linked(each)}</td><td>{escape(each.get('description', ''))}</td></tr>"
        for field, each in schema.get("properties", {}).items()
    )
    table = f"<table>{rows}</table>" if rows else f"<p>{escape(_kind(schema))}</p>"
    note = escape(schema.get("description", ""))
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> <span class=quiet>{note}</span></summary>{table}</details>'


def _linked(schema: dict[str, Any]) -> str:
    """Return the type as a short HTML text with links to other schemas."""
    words = escape(_kind(schema))
    return re.sub(r"→(\w+)", r'<a href="#\1">\1</a>', words)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"→{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_kind(schema.get('items') or schema.get('prefixItems', [{}])[0])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_kind(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[key]:,}" for key, sign in _BOUNDS.items() if isinstance(schema.get(key), int | float)]
    return " ".join([kind, *bounds])


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minLength": "length ≥",
    "maxLength": "length ≤",
}
