// Every text and label that the page shows passes through `visible` once, here, so that no place can forget it.
// Contents of form fields are not changed: they are sent back.

import { options } from "preact";
import type { VNode } from "preact";
import { visible } from "./ansi";

const LABELS = ["title", "aria-label", "label"];

function shown(child: unknown): unknown {
  if (typeof child === "string") return visible(child);
  return Array.isArray(child) ? child.map(shown) : child;
}

export function showOnlyVisibleText(): void {
  const before = options.vnode;
  options.vnode = (node: VNode) => {
    const props = node.props as Record<string, unknown>;
    if (props.children !== undefined) props.children = shown(props.children);
    if (typeof node.type === "string") for (const name of LABELS) if (typeof props[name] === "string") props[name] = visible(props[name]);
    before?.(node);
  };
}
