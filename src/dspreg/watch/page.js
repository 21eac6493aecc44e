"use strict";
const EVERY = 2000, KINDS = ["finished", "running", "waiting", "failed", "cancelled"];
const by = (selector, root = document) => root.querySelector(selector);
const number = (value) => value.toLocaleString("en");

function make(name, text, className) {  // text, never markup: names in a store are anybody's
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function fill(place, children) {
  place.replaceChildren(...children);
}

function show(id, rows, container, more) {
  const section = by(id);
  section.hidden = rows.length === 0;
  fill(by(container, section), rows);
  const rest = by(".more", section);
  if (rest) rest.textContent = more ? `and ${number(more)} more` : "";
}

function curve(points) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const low = Math.min(...ys), high = Math.max(...ys), first = Math.min(...xs), last = Math.max(...xs);
  const place = ([x, y]) => [100 * (x - first) / (last - first || 1), 38 - 36 * (y - low) / (high - low || 1)];
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `source validation from ${ys[0].toFixed(3)} to ${ys[ys.length - 1].toFixed(3)}`);
  const line = document.createElementNS(space, "polyline");
  line.setAttribute("points", points.map((p) => place(p).map((v) => v.toFixed(2)).join(",")).join(" "));
  svg.append(line);
  return svg;
}

function card(run) {
  const box = make("article", undefined, "card");
  box.append(make("h3", run.title));
  const bar = make("progress");
  bar.setAttribute("aria-label", "steps taken");
  if (run.steps) { bar.max = run.steps; bar.value = Math.max(0, run.step); } else { bar.max = 1; bar.value = 0; }
  box.append(bar);
  const steps = run.steps ? `step ${number(run.step)} of ${number(run.steps)}` : "starting";
  const validation = run.curve.length ? `, validation ${run.curve[run.curve.length - 1][1].toFixed(3)}` : "";
  box.append(make("p", steps + validation));
  if (run.curve.length > 1) box.append(curve(run.curve));
  const where = run.process === null ? run.machine : `${run.machine}, process ${run.process}`;
  box.append(make("p", run.trouble || `progress ${number(run.silent)} s ago, ${where}`, run.trouble ? "wrong" : ""));
  return box;
}

function failure(run) {
  const item = make("li");
  item.append(make("strong", run.title), make("br"), run.reason);
  const again = { running: "being tried again", waiting: "to be tried again" }[run.state];
  const tried = run.attempts ? `${number(run.attempts)} failed attempt${run.attempts > 1 ? "s" : ""}` : "";
  const said = [tried, again].filter(Boolean).join(", ");
  if (said) item.append(make("br"), make("span", said, "quiet"));
  return item;
}

function row(cells) {
  const line = make("tr");
  cells.forEach((cell, i) => {
    const each = make(i ? "td" : "th", cell, typeof cell === "string" && i < 1 ? "" : "n");
    if (!i) each.scope = "row";
    line.append(each);
  });
  return line;
}

function table(status) {
  const head = by("#groups thead tr");
  fill(head, ["data set, method", "runs", ...KINDS].map((text, i) => {
    const cell = make("th", text, i ? "n" : "");
    cell.scope = "col";
    return cell;
  }));
  const lines = status.groups.map((group) => row([`${group.dataset}, ${group.algorithm}`, ...["runs", ...KINDS].map((k) => number(group[k]))]));
  show("#groups", lines, "tbody");
}

function draw(status) {
  const all = status.all, share = KINDS.filter((kind) => all[kind]);
  const said = share.map((kind) => `${number(all[kind])} ${kind}`).join(", ");
  by("#summary").textContent = all.runs ? `${status.over ? "Nothing is left to do: " : ""}${said}, of ${number(all.runs)} runs` : "Nothing is planned here yet";
  const bar = by("#bar");
  bar.hidden = !all.runs;
  bar.setAttribute("aria-label", said);
  fill(bar, share.map((kind) => {
    const part = make("span", undefined, kind);
    part.style.flexGrow = all[kind];
    return part;
  }));
  by("#left").textContent = status.left;
  show("#training", status.training.map(card), ".cards", status.more.training);
  show("#failed", status.failed.map(failure), "ul", status.more.failed);
  show("#lately", status.lately.map((run) => row([run.title, run.targets.map(([name, value]) => `${name} ${value}`).join(", "), run["held out"]])), "tbody");
  table(status);
  document.title = all.runs ? `${number(all.finished)}/${number(all.runs)} – ${status.store}` : status.store;
}

function complain(text) {
  const place = by("#trouble");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}

let shown = "";
async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("status.json", { cache: "no-store" });
      const text = await answer.text(), status = JSON.parse(text);
      if (status.error) complain(status.error);
      else {
        complain("");
        if (text !== shown) draw(status);  // what is selected or read aloud stays, if nothing has changed
        by("#when").textContent = `As of ${new Date().toLocaleTimeString()}, refreshed every two seconds.`;
        shown = text;
      }
    } catch {
      complain("dspreg watch does not answer any more: what is shown is what it said last. Start it again to go on.");
    }
  }
  setTimeout(refresh, EVERY);
}
document.addEventListener("visibilitychange", () => { shown = document.hidden ? shown : ""; });
refresh();
