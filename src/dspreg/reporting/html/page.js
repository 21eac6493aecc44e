"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (wish.matches ? "dark" : "light");
  const other = () => (theme() === "dark" ? "light" : "dark");
  const label = () => { button.textContent = `${other() === "dark" ? "Dark" : "Light"} theme`; };
  button.addEventListener("click", () => { root.dataset.theme = other(); label(); });
  wish.addEventListener("change", label);
  label();
  button.hidden = false;

  // A group is a row with what stands beside it; it moves as a whole, and its first row says where to.
  function key(group, column, isText) {
    const cell = group.rows[0].cells[column];
    if (isText) return cell.textContent.trim() || null;
    const number = cell.dataset.value ?? cell.dataset.found;
    return number === undefined ? null : Number(number);
  }

  function compared(a, b) {
    return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const first = [...table.tBodies];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const isText = !head.classList.contains("n");
      head.querySelector("button").addEventListener("click", () => {
        const start = isText ? "ascending" : "descending"; // the best first
        const opposite = isText ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === start ? opposite : start;
        const sign = order === "ascending" ? 1 : -1;
        const keyed = first.map((group) => [key(group, column, isText), group]);
        keyed.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compared(a, b)));
        table.append(...keyed.map(([, group]) => group));
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", order);
      });
    });
  }
})();
