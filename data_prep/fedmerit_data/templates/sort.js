for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const numeric = head.classList.contains("number");
    const value = row => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!numeric) return (up ? 1 : -1) * x.localeCompare(y, undefined, {numeric: true});
      if (x === "nan" || y === "nan") return (x === "nan") - (y === "nan");
      return (up ? 1 : -1) * (x - y);
    });
    table.tBodies[0].append(...rows);
  }));
}
