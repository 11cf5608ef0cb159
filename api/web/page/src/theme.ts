// The color scheme: that of the system, or the one that the user chose.
import { effect, signal } from "@preact/signals";
import { read, write } from "./stored";

export type Theme = "" | "light" | "dark"; // "": as the system

const stored = read("local", "millrace.theme");
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "");

effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  write("local", "millrace.theme", theme.value);
});

export const nextTheme = (t: Theme): Theme => (t === "" ? "light" : t === "light" ? "dark" : "");
export const themeName = (t: Theme): string => (t === "" ? "as the system" : t);
