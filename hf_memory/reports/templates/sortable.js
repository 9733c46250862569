// Tables that sort by a click on a head, and hide the rows without the words of their search field.
function keyOf(cell) {
  const text = cell.dataset.key ?? cell.textContent;
  return text !== "" && !isNaN(text) ? Number(text) : text;
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
});

document.querySelectorAll("input[data-filter]").forEach(input => input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
  for (const row of document.getElementById(input.dataset.filter).tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
}));
