// Tables that sort by a click on a head, and hide the rows that do not meet their words, choices and bounds.
const NUMBER = /^(?:≥\s*)?([-+]?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:e[-+]\d+)?)(?=$|[\s%])/i;

// The number with which a text begins: "409,600", "0.750 (0.500, 1.000)", "60%". A digest like 12e45678 is none.
function keyOf(cell) {
  const text = (cell.dataset.key ?? cell.textContent).trim();
  const found = text.match(NUMBER);
  return found ? Number(found[1].replaceAll(",", "")) : text;
}

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
  return typeof a === "number" ? -1 : 1;
}

document.querySelectorAll("table.sortable").forEach(table => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const level = row => Number(row.classList.contains("level"));  // chance and baselines stay below
    rows.sort((a, b) => level(a) - level(b) || sign * compare(keyOf(a.cells[column]), keyOf(b.cells[column])));
    rows.forEach(row => table.tBodies[0].append(row));
  }));

  const words = document.querySelector(`input[data-filter="${table.id}"]`);
  const limits = [...document.querySelectorAll(`[data-bounds="${table.id}"] [data-column]`)];
  const meets = (row, limit) => {
    if (limit.value === "") return true;
    const cell = row.cells[limit.dataset.column];
    return limit.tagName === "SELECT" ? cell.textContent === limit.value : keyOf(cell) <= Number(limit.value);
  };
  const show = () => {
    const wanted = (words?.value ?? "").toLowerCase().split(/\s+/).filter(word => word);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(wanted.every(word => text.includes(word)) && limits.every(limit => meets(row, limit)));
    }
  };
  [words, ...limits].forEach(control => control?.addEventListener("input", show));
});
