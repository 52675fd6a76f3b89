// A model's text → elements. It makes no markup of text, loads nothing, and takes time that grows with the text alone.
import {html, useMemo} from "./preact.js";
import {Copy} from "./base.js";

const LONGEST = 200_000; // characters; what is longer stays plain
const DEEPEST = 6; // lists and quotes within each other
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,30})/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const ITEM = /^(\s{0,12})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const CELLS = /^ {0,3}\|? ?:?-+:? *(?:\| *:?-+:? *)*\|? *$/;

// A longer line is words: no pattern reads it.
const LINE = 2000;
const is = (pattern, line) => (line.length <= LINE ? pattern.exec(line) : null);

// Blocks: {kind, …}, each of the lines that it came from.
export function blocks(text) {
  const lines = text.split("\n"), found = [];
  let at = 0;
  const plain = (line) => line.trim() && ![FENCE, HEADING, ITEM, RULE, QUOTE].some((pattern) => is(pattern, line));
  while (at < lines.length) {
    const line = lines[at], fence = is(FENCE, line), heading = is(HEADING, line);
    if (!line.trim()) at++;
    else if (fence) {
      const from = ++at;
      while (at < lines.length && !closes(lines[at], fence[1])) at++;
      found.push({kind: "code", language: fence[2], text: lines.slice(from, at++).join("\n")});
    } else if (heading) {
      found.push({kind: "heading", level: heading[1].length, text: heading[2].trim().replace(/(?<!#)#{1,6}$/, "")});
      at++;
    } else if (is(RULE, line)) {
      found.push({kind: "rule"});
      at++;
    } else if (is(QUOTE, line)) {
      const from = at;
      while (at < lines.length && is(QUOTE, lines[at])) at++;
      found.push({kind: "quote", text: lines.slice(from, at).map((one) => one.replace(QUOTE, "")).join("\n")});
    } else if (is(ITEM, line)) {
      const from = at, [, margin, mark] = ITEM.exec(line);
      while (at < lines.length && belongs(lines, at, margin.length, /\d/.test(mark))) at++;
      found.push(list(lines.slice(from, at), margin.length));
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && is(CELLS, lines[at + 1])) {
      const from = at;
      at += 2;
      while (at < lines.length && lines[at].includes("|") && lines[at].trim()) at++;
      found.push({kind: "table", heads: cells(line), rows: lines.slice(from + 2, at).map(cells)});
    } else {
      const from = at++;
      while (at < lines.length && plain(lines[at])) at++;
      found.push({kind: "text", text: lines.slice(from, at).join("\n")});
    }
  }
  return found;
}

const closes = (line, mark) => {
  const text = line.trim();
  return text.length >= mark.length && text.length < 100 && [...text].every((character) => character === mark[0]);
};

// Whether a line goes on with the list that begins at this margin. ordered: its items have numbers.
function belongs(lines, at, margin, ordered) {
  const line = lines[at];
  if (!line.trim()) return at + 1 < lines.length && lines[at + 1].trim() !== "" && (indent(lines[at + 1]) > margin || belongs(lines, at + 1, margin, ordered));
  const item = is(ITEM, line);
  if (item) return item[1].length > margin + 1 || (item[1].length >= margin && /\d/.test(item[2]) === ordered);
  return indent(line) > margin || (lines[at - 1].trim() !== "" && !is(HEADING, line) && !is(FENCE, line));
}

const indent = (line) => line.length - line.trimStart().length;
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function list(lines, margin) {
  const items = [];
  for (const line of lines) {
    const item = is(ITEM, line);
    if (item && item[1].length < margin + 2 && item[1].length >= margin) items.push([item[3]]);
    else items[items.length - 1].push(line);
  }
  const [, , mark] = ITEM.exec(lines[0]);
  return {kind: "list", ordered: /\d/.test(mark), start: parseInt(mark, 10) || 1, items: items.map(([first, ...rest]) => {
    const least = Math.min(...rest.filter((line) => line.trim()).map(indent), 12);
    return [first, ...rest.map((line) => line.slice(rest.length ? least : 0))].join("\n");
  })};
}

const INLINE = /(?<!`)(`{1,9})(?!`)([^`]|[^`][^]{0,300}?[^`])\1(?!`)|\*\*([^*\n]{1,1000})\*\*|__([^_\n]{1,1000})__|\*([^*\s][^*\n]{0,1000})\*|(?<![\w_])_([^_\s][^_\n]{0,1000})_(?![\w_])|~~([^~\n]{1,1000})~~|!?\[([^[\]\n]{0,300})\]\(([^\s()<>]{1,2000})(?:\s+"[^"\n]{0,200}")?\)|(https?:\/\/[^\s<>()"'`]{1,2000}[^\s<>()"'`.,;:!?])/g;

// A text without line breaks of its own: code, emphasis, links. deep: how many marks stand around it.
export function inline(text, deep = 0) {
  const found = [];
  let from = 0;
  if (deep > DEEPEST) return [text];
  for (const match of text.matchAll(INLINE)) {
    const [all, , code, bold, bold2, slanted, slanted2, struck, label, target, bare] = match;
    if (match.index > from) found.push(text.slice(from, match.index));
    from = match.index + all.length;
    if (code !== undefined) found.push(html`<code>${code}</code>`);
    else if (bold || bold2) found.push(html`<strong>${inline(bold || bold2, deep + 1)}</strong>`);
    else if (slanted || slanted2) found.push(html`<em>${inline(slanted || slanted2, deep + 1)}</em>`);
    else if (struck) found.push(html`<s>${inline(struck, deep + 1)}</s>`);
    else found.push(link(bare || target, bare ? bare : label));
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

// Only to web pages, and only when somebody presses it; pictures, too, are links.
function link(target, label) {
  if (!/^https?:\/\//i.test(target)) return `${label || ""} (${target})`;
  return html`<a href=${target} target="_blank" rel="noopener noreferrer nofollow" title=${target}>${label || target}</a>`;
}

function Block({block, deep}) {
  switch (block.kind) {
    case "code": return html`<div class="source"><div class="head"><span class="soft small">${block.language}</span><span class="push"></span>
      <${Copy} text=${block.text} /></div><pre tabindex="0">${block.text}</pre></div>`;
    case "heading": return html`<p class="heading" role="heading" aria-level=${Math.min(6, block.level + 2)}>${inline(block.text)}</p>`;
    case "rule": return html`<hr />`;
    case "quote": return html`<div class="quote"><${Blocks} text=${block.text} deep=${deep + 1} /></div>`;
    case "list": {
      const items = block.items.map((item) => html`<li><${Blocks} text=${item} deep=${deep + 1} tight /></li>`);
      return block.ordered ? html`<ol start=${block.start}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table": return html`<div class="scrolls" tabindex="0" role="region" aria-label="Table"><table>
      <thead><tr>${block.heads.map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
      <tbody>${block.rows.map((row) => html`<tr>${block.heads.map((_, at) => html`<td>${inline(row[at] || "")}</td>`)}</tr>`)}</tbody></table></div>`;
    default: return html`<p>${inline(block.text)}</p>`;
  }
}

// Of a text that grows, only the last block changes: the others aren't read again.
function Known({block, deep, tight}) {
  return useMemo(() => tight && block.kind === "text" ? html`<span>${inline(block.text)}</span>`
    : html`<${Block} block=${block} deep=${deep} />`, [JSON.stringify(block)]);
}

function Blocks({text, deep = 0, tight = false}) {
  const found = useMemo(() => (deep > DEEPEST ? [{kind: "text", text}] : blocks(text)), [text]);
  return found.map((block, at) => html`<${Known} block=${block} deep=${deep} tight=${tight} key=${at} />`);
}

export default function Markdown({text}) {
  if (text.length > LONGEST) return html`<div class="text">${text}</div>`;
  return html`<div class="markdown"><${Blocks} text=${text} /></div>`;
}
