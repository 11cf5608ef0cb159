import { Icon } from "./icons";
import { nextTheme, theme, themeName } from "./theme";

/** ThemeButton goes from one color scheme to the next. */
export function ThemeButton() {
  const name = `Colors: ${themeName(theme.value)}`;
  return (
    <button type="button" class="quiet" aria-label={name} title={name} onClick={() => (theme.value = nextTheme(theme.value))}>
      <Icon name={theme.value === "" ? "half" : theme.value === "light" ? "sun" : "moon"} />
    </button>
  );
}
