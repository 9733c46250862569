// Figures that show one curve alone: a click on its name, or on the curve, fades the others, and a second one brings them back.
document.querySelectorAll(".drawing svg").forEach(figure => {
  const parts = [...figure.querySelectorAll("[data-curve]")];
  const curves = new Set(parts.map(part => part.dataset.curve));
  const names = [...figure.querySelectorAll("[data-name]")].filter(name => curves.has(name.dataset.name));  // levels have no curve
  let alone = null;
  const show = label => {
    alone = alone === label ? null : label;
    parts.forEach(part => part.classList.toggle("aside", alone !== null && part.dataset.curve !== alone));
    names.forEach(name => {
      name.classList.toggle("aside", alone !== null && name.dataset.name !== alone);
      name.setAttribute("aria-pressed", alone === name.dataset.name);
    });
  };
  parts.forEach(part => part.addEventListener("click", () => show(part.dataset.curve)));
  names.forEach(name => {
    name.setAttribute("role", "button");
    name.setAttribute("tabindex", "0");
    name.setAttribute("aria-label", name.dataset.name);
    name.addEventListener("click", () => show(name.dataset.name));
    name.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      show(name.dataset.name);
    });
  });
});
