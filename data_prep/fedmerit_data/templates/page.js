// Everything here is optional: without it the page shows the same numbers, with all parts of hospitals open.
const all = (what, where = document) => [...where.querySelectorAll(what)];
document.documentElement.classList.add("js");
const tip = document.createElement("div");
tip.id = "tip"; tip.hidden = true; tip.setAttribute("aria-hidden", "true"); document.body.append(tip);
document.addEventListener("pointermove", event => {
  const at = event.target.closest("[data-tip], svg[aria-label]"); tip.hidden = !at; if (!at) return;
  tip.textContent = at.dataset.tip ?? at.getAttribute("aria-label");
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + (event.clientY + 44 > innerHeight ? -34 : 14)}px`;
});

// tables: a click on a heading sorts; a hospital and its details are one body
const numbers = /[-\u2212]?\d+(\.\d+)?/;
const read = (cell, isNumber) => {
  const text = (all(".of", cell).find(part => part.classList.contains("on")) ?? cell).textContent.trim();
  return isNumber ? parseFloat(cell.dataset.value ?? numbers.exec(text)?.[0].replace("\u2212", "-")) : text;
};
for (const table of all("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], bodies = table.tBodies.length > 1;
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending", isNumber = head.classList.contains("number");
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = part => read((bodies ? part.rows[0] : part).cells[column], isNumber);
    const sorted = [...bodies ? table.tBodies : table.tBodies[0].rows].map(part => [value(part), part]).sort(([x], [y]) =>
      !isNumber ? (up ? 1 : -1) * x.localeCompare(y, undefined, {numeric: true})
        : isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : (up ? 1 : -1) * (x - y));
    (bodies ? table : table.tBodies[0]).append(...sorted.map(([, part]) => part));
  }));
}

// hospitals: a row opens its details; arrow keys move from row to row
const open = (button, to = button.getAttribute("aria-expanded") !== "true") => {
  button.setAttribute("aria-expanded", to);
  document.getElementById(button.getAttribute("aria-controls")).hidden = !to;
};
const rows = all("button.open");
if (rows.length > 1) rows.forEach(button => open(button, false));
for (const row of all(".hospitals .row"))
  row.addEventListener("click", () => getSelection().isCollapsed && open(row.querySelector(".open")));
document.addEventListener("keydown", event => {
  const shown = all("tbody:not([hidden]) button.open"), at = shown.indexOf(document.activeElement);
  const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1}[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault(); shown[Math.max(0, Math.min(to, shown.length - 1))].focus();
});

// filters: one method, some hospitals
all("[data-method]").forEach(button => button.addEventListener("click", () => {
  for (const other of all("[data-method]")) other.setAttribute("aria-pressed", other.dataset.method === button.dataset.method);
  for (const part of all(".of")) part.classList.toggle("on", part.dataset.of.split(" ").includes(button.dataset.method));
}));
all("[data-pick]").forEach(button => button.addEventListener("click", () => {
  const on = button.getAttribute("aria-pressed") !== "true"; button.setAttribute("aria-pressed", on);
  for (const part of all("[data-site]")) if (part.dataset.site === button.dataset.pick) part.hidden = !on;
}));
all("[data-open-all]").forEach(button => button.addEventListener("click", () => {
  const to = button.getAttribute("aria-pressed") !== "true"; button.setAttribute("aria-pressed", to);
  all("details").forEach(part => { part.open = to; }); rows.forEach(row => open(row, to));
}));
// a page of something at work loads itself again
for (const part of all("[data-every]")) setTimeout(() => location.reload(), 1000 * part.dataset.every);
