// What programs write to a terminal, as pieces of plain text with classes. Nothing of it ever becomes HTML: colors are
// kept, every other escape sequence is dropped, and control characters and marks that reorder text are made visible.

export interface Piece {
  text: string;
  class: string;
}

export const LONGEST_LINE = 8192;

// eslint-disable-next-line no-control-regex
const ESCAPE = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[@-Z\\-_a-z0-9=><])?/g;
// eslint-disable-next-line no-control-regex
const INVISIBLE = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text of others with everything invisible made visible, so that a name cannot pretend to be another. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (one) => {
    const code = one.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** A progress bar overwrites its line: what follows the last carriage return is what a terminal shows. */
export function overwritten(line: string): string {
  const end = line.endsWith("\r") ? line.length - 1 : line.length;
  const from = line.lastIndexOf("\r", end - 1);
  return line.slice(from + 1, end);
}

export class AnsiReader {
  private bold = "";
  private color = "";

  /** The pieces of one line; colors last until they are changed, also across lines. */
  read(line: string): Piece[] {
    const pieces: Piece[] = [];
    let from = 0;
    for (const found of line.matchAll(ESCAPE)) {
      if (found.index > from) pieces.push(this.piece(line.slice(from, found.index)));
      from = found.index + found[0].length;
      if (found[2] === "m") this.style(found[1] ?? "");
    }
    if (from < line.length) pieces.push(this.piece(line.slice(from)));
    return pieces;
  }

  private piece(text: string): Piece {
    return { text: visible(text), class: [this.bold, this.color].filter(Boolean).join(" ") };
  }

  private style(codes: string): void {
    const all = codes.split(";").map(Number);
    for (let i = 0; i < all.length; i++) {
      const code = all[i]!;
      if (code === 0) this.bold = this.color = "";
      else if (code === 22 || code === 23 || code === 24 || code === 29) this.bold = "";
      else if (code === 1 || code === 2 || code === 3 || code === 4 || code === 9) this.bold = `a${code}`;
      else if (code >= 30 && code <= 37) this.color = `f${code - 30}`;
      else if (code >= 90 && code <= 97) this.color = `f${code - 90}`;
      else if (code === 39) this.color = "";
      else if (code === 38 || code === 48) i += all[i + 1] === 5 ? 2 : 4;
    }
  }
}

/** Splits a stream of text into lines and keeps at most `LONGEST_LINE` characters of each. */
export class LineSplitter {
  private head = "";
  private dropped = 0;

  /** Lines that are complete, each with the number of characters that were cut off. */
  push(text: string): { line: string; cut: number }[] {
    const lines: { line: string; cut: number }[] = [];
    let from = 0;
    for (;;) {
      const at = text.indexOf("\n", from);
      if (at < 0) break;
      this.keep(text, from, at);
      lines.push(this.take());
      from = at + 1;
    }
    this.keep(text, from, text.length);
    return lines;
  }

  /** The line that is not complete yet, or null. */
  get rest(): { line: string; cut: number } | null {
    return this.head ? { line: this.head, cut: this.dropped } : null;
  }

  private keep(text: string, from: number, until: number): void {
    const room = LONGEST_LINE - this.head.length;
    const end = Math.min(until, from + Math.max(0, room));
    this.head += text.slice(from, end);
    this.dropped += until - end;
  }

  private take(): { line: string; cut: number } {
    const line = { line: this.head, cut: this.dropped };
    this.head = "";
    this.dropped = 0;
    return line;
  }
}
